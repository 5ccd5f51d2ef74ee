"""Scripted experts of Meta-World whose actions change gradually with the state.

Meta-World's own experts choose between motions by thresholds of 1 to 4 cm and move at full speed on
both sides of them. So the labels of nearly equal states contradict each other, and some alternate
every few steps. A policy that sees positions with errors of that size learns the mean of both, and
stalls. These experts blend the motions over one to several centimetres. Most of them still succeed
when the positions of objects and goal have a constant normal error of 8 mm in each axis
(docs/measurements.md).

Each is a function of Meta-World's 39 numbers: hand [0:3], opening of the fingers [3], object [4:7]
and its orientation [7:11], second object [11:14], goal [36:39]. It has no state of its own, and
does not read the numbers of the previous step. Axes: x to the right, y away from the robot, z up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from proctor.benchmarks.metaworld.smooth_experts.grasping import GRASPING
from proctor.benchmarks.metaworld.smooth_experts.mechanisms import MECHANISMS
from proctor.benchmarks.metaworld.smooth_experts.pushing import PUSHING
from proctor.features import Array

SMOOTH_EXPERTS: Mapping[str, Callable[[Array], Array]] = {
    **GRASPING,
    **MECHANISMS,
    **PUSHING,
}
"""Experts by task. The other tasks keep Meta-World's own."""
