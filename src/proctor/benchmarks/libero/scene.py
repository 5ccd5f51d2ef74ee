"""Layout of LIBERO's privileged state: the poses of all objects, as a table of fixed shape.

``observation.environment_state``, float64 [ROWS, COLUMNS], is the world after the last step (the
sensors lag by 2 ms). Row 0 is the hand, row i + 1 is ``Problem.part_names[i]``; the rest is zero.

| columns | the hand | an object or fixture | a region |
|---|---|---|---|
| 0-2 | grip site, m | origin of its body | centre |
| 3-6 | orientation, quaternion w x y z | the same | the same |
| 7 | gap between the fingers, m | its own joint (stove knob, door), else 0 | its drawer's joint |
| 8-13 | 0 | low and high corner of its collision box, own frame | of the region, own frame |
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from proctor.benchmarks.libero.problem import Problem
from proctor.features import Array

ROWS, COLUMNS = 20, 14
POSE_NUMBERS = 20
"""Length of X-VLA's pose (poses.py); unrelated to the rows of the table."""


@dataclass(frozen=True)
class SceneObject:
    """One row of the table."""

    position: Array
    rotation: Array  # 3x3
    joint: float
    low: Array
    high: Array

    @property
    def centre(self) -> Array:
        """Centre of the object's box, in the world frame."""
        return self.position + self.rotation @ ((self.low + self.high) / 2)

    @property
    def bounds(self) -> tuple[Array, Array]:
        """Corners of the axis-aligned bounding box, in the world frame."""
        half = np.abs(self.rotation) @ ((self.high - self.low) / 2)
        return self.centre - half, self.centre + half


class Scene:
    """The latest privileged state, accessible by name."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._row_of = {name: row for row, name in enumerate(problem.part_names, start=1)}
        self._table = np.zeros((ROWS, COLUMNS))

    def update(self, table: Array) -> None:
        """Store a copy of the new table, since its owner overwrites it."""
        self._table = table.copy()

    @property
    def hand(self) -> SceneObject:
        """The hand; its ``joint`` is the gap between the fingers."""
        return self._part(0)

    def __getitem__(self, name: str) -> SceneObject:
        return self._part(self._row_of[name])

    def _part(self, row: int) -> SceneObject:
        numbers = self._table[row]
        return SceneObject(
            numbers[0:3], rotation(numbers[3:7]), float(numbers[7]), numbers[8:11], numbers[11:14]
        )

    def top_between(self, start: Array, end: Array, margin: float, *, ignored: str = "") -> float:
        """Return the height of the highest object within ``margin`` of a straight path."""
        path = np.linspace(start[:2], end[:2], 20)
        top = -np.inf
        for name in self.problem.part_names:  # with regions: an open drawer leaves its cabinet
            if name != ignored:
                low, high = self[name].bounds
                near = (path > low[:2] - margin) & (path < high[:2] + margin)
                top = max(top, high[2] if near.all(axis=1).any() else -np.inf)
        return float(top)


def rotation(quaternion: Array) -> Array:
    """Return the 3x3 matrix of a unit quaternion w x y z."""
    w, x, y, z = quaternion
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )
