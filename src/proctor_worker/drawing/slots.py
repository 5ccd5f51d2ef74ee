"""Where the geoms of a scene lie in a model that is shared by many scenes.

A shared model has a fixed number of geoms of each type, its slots. A scene's geoms take the first
slots of their types, in the scene's order; the other slots are empty. Where a geom lies depends on
its own scene only, so a picture does not depend on what was drawn before.
"""

from typing import TYPE_CHECKING, Any, Tuple

if TYPE_CHECKING:
    import numpy as np
else:
    from proctor_worker.lazy_numpy import np

from proctor_worker.drawing import scene

_LEAST = {
    scene.PLANE: 1,
    scene.SPHERE: 16,
    scene.CAPSULE: 4,
    scene.CYLINDER: 8,
    scene.BOX: 16,
    scene.MESH: 32,
}
"""Least number of slots by type: enough for all Meta-World tasks, which thus share one model."""

Slots = Tuple[int, ...]
"""Number of slots of each type, by the type's value."""


def slot_counts(kinds: "np.ndarray[Any, Any]") -> Slots:
    """Return the slots for geoms of types ``kinds``; more than the least are a power of two."""
    needed = np.bincount(kinds, minlength=scene.MESH + 1)
    return tuple(_rounded(int(count), _LEAST.get(kind, 0)) for kind, count in enumerate(needed))


def _rounded(count: int, least: int) -> int:
    return least if count <= least else 1 << (count - 1).bit_length()


def slot_kinds(slots: Slots) -> "np.ndarray[Any, Any]":
    """Return the type of each slot, int32 [S]."""
    return np.repeat(np.arange(len(slots)), slots).astype(np.int32)


def slots_of_geoms(kinds: "np.ndarray[Any, Any]", slots: Slots) -> "np.ndarray[Any, Any]":
    """Return the slot of each geom, int [G]."""
    first = np.concatenate([[0], np.cumsum(slots)])
    taken = np.zeros(len(kinds), np.intp)
    for kind in np.unique(kinds):
        of_kind = np.flatnonzero(kinds == kind)
        taken[of_kind] = first[kind] + np.arange(len(of_kind))
    return taken
