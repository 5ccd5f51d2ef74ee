"""Names and numbers of the embodiments of N1.5. No torch here."""

from __future__ import annotations

NEW = "new_embodiment"
EMBODIMENTS = {
    NEW: 31,
    "oxe_droid": 17,
    "agibot_genie1": 26,
    "gr1": 24,
    "so100": 2,
    "unitree_g1": 3,
}
