"""LIBERO-Pro's objects: LIBERO's in other colours and sizes.

Every object has an asset of its own name. The table has LIBERO's category in whose orientation it
is placed, and whose joints and thresholds it has. Two are not the obvious ones: the package places
``blue_ketchup`` and ``yellow_milk`` as cans.
"""

from __future__ import annotations

PLACED_LIKE = {
    "bigger_akita_black_bowl": "akita_black_bowl",
    "bigger_alphabet_soup": "alphabet_soup",
    "black_bowl": "akita_black_bowl",
    "blue_ketchup": "alphabet_soup",
    "brown_rack": "wine_rack",
    "green_bbq_sauce": "bbq_sauce",
    "green_butter": "butter",
    "green_chocolate_pudding": "chocolate_pudding",
    "red_basket": "basket",
    "red_cream_cheese": "cream_cheese",
    "red_salad_dressing": "salad_dressing",
    "white_bottle": "wine_bottle",
    "yellow_cabinet": "white_cabinet",
    "yellow_milk": "alphabet_soup",
    "yellow_moka_pot": "moka_pot",
    "yellow_plate": "plate",
    "yellow_stove": "flat_stove",
    "yellow_tomato_sauce": "tomato_sauce",
}
