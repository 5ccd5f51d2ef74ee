"""Smooth experts of tasks in which an object is held while the hand moves it over the table."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from proctor.benchmarks.metaworld.smooth_experts.motions import (
    Grasp,
    blend,
    move,
    ramp,
    xyz,
)
from proctor.features import Array

_PATH_GAIN = 14.0
"""For paths around or through something: slower changes than the 20 of ``move``."""
_CARRY_GAIN = 10.0
"""The hand slows down from 10 cm before the goal on; goals are 4 to 7 cm wide."""


GENTLE = Grasp(too_high=0.03, centred=(0.035, 0.055), gain=11.0, funnel=(0.015, 0.08))
"""The fingers are 9 cm long: they reach the object also from 3 cm too high."""
LIGHT = replace(GENTLE, closed=0.55, opened=0.75, effort=0.6)
"""For balls and pucks: more effort squeezes them out when the hand is not centred."""


def drag(seen: Array, grip: Array, goal: Array, grasp: Grasp) -> Array:
    """Take the object at the offset ``grip``, and move the hand to ``goal`` while it is held."""
    at = seen[4:7] + grip
    return grasp.act(seen, at, lambda hand: move(hand, goal, _CARRY_GAIN))


def stick_pull(seen: Array) -> Array:
    """Put the stick through the handle of the thermos, and pull the thermos to the goal."""
    stick, handle, goal = seen[4:7], seen[11:14], seen[36:39]

    def carry(hand: Array) -> Array:
        aside = float(np.hypot(stick[1] - handle[1], stick[2] - handle[2]))
        ready = 1 - ramp(aside, 0.015, 0.03)  # the hole is 3 cm wider than the stick
        ahead = handle - stick + blend(ready, xyz(-0.1, 0, 0), xyz(0.02, 0, 0))
        insert = move(hand, hand + ahead, _PATH_GAIN)
        back = goal - handle
        pull = move(hand, hand + xyz(back[0], back[1], 0), _PATH_GAIN)
        return blend(ramp(stick[0] - handle[0], -0.05, -0.03), insert, pull)

    return GENTLE.act(seen, stick + xyz(-0.015, 0, 0.03), carry)


def stick_push(seen: Array) -> Array:
    """Lift the stick to the thermos, and push the thermos to the goal."""
    stick, thermos, goal = seen[4:7], seen[11:14], seen[36:39]

    def carry(hand: Array) -> Array:
        offset = thermos - stick
        target = xyz(goal[0], hand[1] + offset[1], hand[2] + offset[2])
        motion = move(hand, target, _PATH_GAIN)
        motion[0] *= 1 - ramp(float(np.hypot(offset[1], offset[2])), 0.02, 0.05)
        return motion

    return GENTLE.act(seen, stick + xyz(0.015, 0, 0.03), carry)


def push_back(seen: Array) -> Array:
    """Drag the block to the goal near the robot."""
    return drag(seen, xyz(0, 0, 0.03), seen[36:39] + xyz(0, 0, 0.05), GENTLE)


def soccer(seen: Array) -> Array:
    """Drag the ball to the middle of the soccer goal."""
    return drag(seen, xyz(0, 0, 0.02), seen[36:39] + xyz(0, 0, 0.06), LIGHT)


def push(seen: Array) -> Array:
    """Drag the puck to the goal."""
    return drag(seen, xyz(-0.005, 0, 0.03), seen[36:39] + xyz(0, 0, 0.05), LIGHT)


def sweep(seen: Array) -> Array:
    """Drag the cube to the goal beside the table."""
    return drag(seen, xyz(0, 0, 0.03), seen[36:39] + xyz(0, 0, 0.05), GENTLE)


def push_wall(seen: Array) -> Array:
    """Drag the puck around the left end of the wall to the goal."""
    goal = seen[36:39] + xyz(0, 0, 0.05)

    def carry(hand: Array) -> Array:
        behind = ramp(hand[1], 0.8, 0.83)  # the wall ends at y = 0.76, the hand is 4 cm wide
        beside = max(ramp(-hand[0], 0.05, 0.08), behind)  # the wall begins at x = -0.02
        x = blend(behind, min(goal[0], -0.1), goal[0])
        y = blend(beside, 0.67, goal[1])
        return move(hand, xyz(float(x), float(y), goal[2]), _PATH_GAIN)

    return GENTLE.act(seen, seen[4:7] + xyz(-0.005, 0, 0.03), carry)


def coffee_pull(seen: Array) -> Array:
    """Take the mug out of the coffee machine, and carry it to the goal just above the table."""
    grasp = replace(
        GENTLE, too_high=0.02, closed=0.55, opened=0.8, effort=1.0
    )  # the round mug slips
    return drag(seen, xyz(0, 0, 0.05), seen[36:39] + xyz(0, 0, 0.08), grasp)


def sweep_into(seen: Array) -> Array:
    """Drag the cube to the hole in the table."""
    return drag(seen, xyz(0, 0, 0.03), seen[36:39] + xyz(0, 0, 0.05), GENTLE)


def hammer(seen: Array) -> Array:
    """Lift the hammer in front of the nail, and drive the nail in."""
    tool, nail = seen[4:7], seen[11:14]
    level = nail + xyz(-0.16, 0, 0.02)  # the head is 16 cm from the middle of the handle, and sinks

    def carry(hand: Array) -> Array:
        offset = level - tool
        ready = 1 - ramp(float(np.hypot(offset[0], offset[2])), 0.02, 0.04)
        before, through = offset[1] - 0.12, 0.1
        target = hand + xyz(offset[0], float(blend(ready, before, through)), offset[2])
        return move(hand, target, _CARRY_GAIN)

    return GENTLE.act(seen, tool + xyz(-0.04, 0, 0.02), carry)


def coffee_push(seen: Array) -> Array:
    """Take the mug, and carry it to the goal just above the table."""
    grasp = replace(GENTLE, closed=0.55, opened=0.75)
    return drag(seen, xyz(-0.003, 0, 0.05), seen[36:39] + xyz(0, 0, 0.065), grasp)


def pick_place(seen: Array) -> Array:
    """Take the puck, and carry it to the goal."""
    grasp = replace(LIGHT, gain=14.0)
    return drag(seen, xyz(-0.005, 0, 0.03), seen[36:39], grasp)


PUSHING = {
    "coffee-pull-v3": coffee_pull,
    "coffee-push-v3": coffee_push,
    "hammer-v3": hammer,
    "pick-place-v3": pick_place,
    "push-back-v3": push_back,
    "push-v3": push,
    "push-wall-v3": push_wall,
    "soccer-v3": soccer,
    "stick-pull-v3": stick_pull,
    "stick-push-v3": stick_push,
    "sweep-into-v3": sweep_into,
    "sweep-v3": sweep,
}
