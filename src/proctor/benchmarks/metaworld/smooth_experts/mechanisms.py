"""Smooth experts of tasks in which the hand pushes, turns or pulls a part of a mechanism."""

from __future__ import annotations

import numpy as np

from proctor.benchmarks.metaworld.smooth_experts.motions import (
    OPEN,
    Grasp,
    action,
    apart,
    blend,
    funnel,
    move,
    ramp,
    xyz,
)
from proctor.features import Array

CLOSED = 1.0
FINGERS = 0.045
"""Length of the fingers below the position of the hand."""
TABLE = 0.05
"""Lowest height of the hand: the fingers' tips touch the table."""
ON_PLATE = 0.072
"""Height of the hand at which the fingers' tips rest on the plate."""
DEPTH = 0.03
"""How far the fingers press into a handle: with half they slip, with twice they go through."""
LIFT = 0.25
"""Speed at which the fingers' friction still lifts a handle against its damping."""


def reach(seen: Array) -> Array:
    """Move the fingers' tips to the goal."""
    return action(move(seen[:3], seen[36:39] + xyz(0, 0, FINGERS), gain=8), 0)


def reach_wall(seen: Array) -> Array:
    """Move the fingers' tips to the goal, and rise while the wall is ahead or below."""
    hand = seen[:3]
    motion = move(hand, seen[36:39] + xyz(0, 0, FINGERS))
    # the wall is at y = 0.75, its top at z = 0.12
    near_wall = ramp(hand[1], 0.55, 0.6) * (1 - ramp(hand[1], 0.78, 0.84))
    low = 1 - ramp(hand[2], 0.22, 0.3)
    motion[2] = blend(near_wall * low, motion[2], 1.0)
    return action(motion, 0)


def button_press_wall(seen: Array) -> Array:
    """Move the closed fingers over the wall, lower them behind it, and push the button."""
    hand, button = seen[:3], seen[4:7]
    gap = button[1] - hand[1] - 0.026  # half the width of the closed fingers
    height = button[2] + 0.05 + 0.05 * ramp(gap, 0.015, 0.045)
    wait = max(ramp(abs(hand[0] - button[0]), 0.02, 0.05), ramp(height - hand[2], 0.01, 0.04))
    too_high = ramp(hand[2] - height, 0.02, 0.04) * (1 - ramp(gap, 0.02, 0.04))
    before = button[1] - 0.05
    ahead = hand[1] + 0.05 * (1 - wait)
    return action(move(hand, xyz(button[0], float(blend(too_high, ahead, before)), height)), CLOSED)


def _pull_up(hand: Array, handle: Array, away: Array, touching: float) -> Array:
    """Press the closed fingers against the handle and lift it by their friction.

    The hand comes from the direction ``away`` and touches at the distance ``touching``.
    """
    distance = float((hand - handle) @ away)
    gap = distance - touching
    beside = hand - handle - distance * away
    aligned = 1 - ramp(apart(beside, xyz(0, 0, 0)), 0.04, 0.07)
    low = 1 - ramp(beside[2], 0.04, 0.07)
    approach = move(hand, handle + (touching + 0.05) * away)
    press = approach * (1 - abs(away)) - ramp(gap + DEPTH, -0.04, 0.04) * 2 * away + away
    press[2] = blend(1 - ramp(gap, 0.01, 0.03), approach[2], LIFT)
    return action(blend(aligned * low, approach, press), CLOSED)


def handle_pull(seen: Array) -> Array:
    """Press the fingers against the front of the handle and lift it."""
    middle = seen[4:7] + xyz(-0.05, 0, -0.014)
    return _pull_up(seen[:3], middle, xyz(0, -1, 0), 0.042)


def handle_pull_side(seen: Array) -> Array:
    """Press the fingers against the right end of the handle and lift it."""
    return _pull_up(seen[:3], seen[4:7], xyz(1, 0, 0), 0.096)


def lever_pull(seen: Array) -> Array:
    """Push the lever's knob along its circle with the palm, from below and then from the front."""
    hand, knob, top = seen[:3], seen[4:7], seen[36:39]
    cosine = np.clip((top[1] - knob[1]) / 0.2, 0.0, 1.0)  # the lever is 0.2 m long
    sine = np.sqrt(1 - cosine**2)
    ahead = xyz(0, sine, cosine)
    behind = knob - xyz(0, 0.085 * sine, 0.085 + 0.047 * cosine)
    engaged = 1 - ramp(_beside(hand - behind, ahead), 0.04, 0.08)
    return action(move(hand, behind + blend(engaged, -0.05, 0.1) * ahead), CLOSED)


def _beside(offset: Array, ahead: Array) -> float:
    """Return the length of the part of ``offset`` that is perpendicular to ``ahead``."""
    return float(np.linalg.norm(offset - (offset @ ahead) * ahead))


def door_lock(seen: Array) -> Array:
    """Push the end of the lock's bar with a finger along its circle, down and to the left."""
    hand, end = seen[:3], seen[4:7]
    axis = seen[36:39] + xyz(0, 0, 0.1)
    sine = np.clip((axis[2] - end[2]) / 0.09, 0.0, 1.0)  # the bar is 9 cm long
    cosine = np.sqrt(1 - sine**2)
    ahead = xyz(-sine, 0, -cosine)
    # the rear finger fits between the bar's front edge and the handle of the door: 2 cm either way
    behind = end + xyz(-0.01 + 0.04 * sine, -0.039, 0.06 * cosine + 0.02 * sine)
    past = ramp((hand - behind) @ ahead, 0.02, 0.05)
    beside = ramp(_beside(hand - behind, ahead), 0.03, 0.06)
    engaged = (1 - past) * (1 - beside) * (1 - ramp(abs(hand[1] - behind[1]), 0.015, 0.035))
    high = ramp(hand[2] - behind[2], -0.01, 0.02)
    above = behind + xyz(0, -0.05 * (1 - high), 0.03)
    return action(blend(engaged, move(hand, above), move(hand, behind + 0.1 * ahead)), OPEN)


def dial_turn(seen: Array) -> Array:
    """Push the dial's pointer around its centre with the closed fingers."""
    hand, pointer = seen[:3], seen[4:7]
    centre = seen[36:39] + xyz(0, -0.03, -0.03)
    out = (pointer - centre) * xyz(1, 1, 0)
    out /= max(float(np.linalg.norm(out)), 0.02)
    ahead = xyz(out[1], -out[0], 0)
    behind = centre + 0.045 * out - 0.055 * ahead
    behind[2] = 0.087  # the tips are 2 cm below the top of the knob, which stands on the table
    low = 1 - ramp(hand[2] - behind[2], 0.01, 0.025)
    near = 1 - ramp(apart(hand, behind), 0.05, 0.08)
    approach = move(hand, funnel(hand, behind, 0.08, 0.02, 0.06))
    return action(blend(low * near, approach, move(hand, behind + 0.08 * ahead)), CLOSED)


def _slide(seen: Array, start: Array, effort: float) -> Array:
    """Press the fingers' tips on the plate at ``start`` and move it to the goal by friction."""
    hand, plate, goal = seen[:3], seen[4:7], seen[36:39]
    at = plate + start
    at[2] = TABLE
    low = 1 - ramp(hand[2] - ON_PLATE, 0.005, 0.02)
    near = 1 - ramp(apart(hand, at), 0.05, 0.08)
    slide = move(hand, hand + goal - plate)
    slide[2] = move(hand, at)[2]
    return action(blend(low * near, move(hand, funnel(hand, at, 0.1, 0.02, 0.06)), slide), effort)


def plate_slide(seen: Array) -> Array:
    """Press the rear finger on the plate and push it into the net."""
    return _slide(seen, xyz(0, -0.06, 0), OPEN)


def plate_slide_back(seen: Array) -> Array:
    """Press the rear finger on the plate, in front of the net, and draw it out."""
    return _slide(seen, xyz(0, -0.06, 0), OPEN)


def plate_slide_side(seen: Array) -> Array:
    """Press the fingers on the plate's right half and push it into the net."""
    inside = seen.copy()
    inside[37] = np.clip(seen[37], 0.575, 0.625)  # the net stands at 0.6, wherever the goal is
    return _slide(inside, xyz(0.05, 0, 0), CLOSED)


def plate_slide_back_side(seen: Array) -> Array:
    """Press the fingers on the plate, beside the net, and draw it out."""
    return _slide(seen, xyz(0.04, 0, 0), CLOSED)


def peg_unplug_side(seen: Array) -> Array:
    """Take the plug and draw it to the right."""
    grasp = Grasp(height=0.1, too_high=0.03, closed=0.93, opened=0.97, effort=1.0)  # 8 cm thick
    plug = seen[4:7] + xyz(0, 0, 0.01)

    def carry(hand: Array) -> Array:
        return move(hand, hand + seen[36:39] - seen[4:7])

    return grasp.act(seen, plug, carry)


MECHANISMS = {
    "button-press-wall-v3": button_press_wall,
    "dial-turn-v3": dial_turn,
    "door-lock-v3": door_lock,
    "handle-pull-v3": handle_pull,
    "handle-pull-side-v3": handle_pull_side,
    "lever-pull-v3": lever_pull,
    "peg-unplug-side-v3": peg_unplug_side,
    "plate-slide-v3": plate_slide,
    "plate-slide-back-v3": plate_slide_back,
    "plate-slide-back-side-v3": plate_slide_back_side,
    "plate-slide-side-v3": plate_slide_side,
    "reach-v3": reach,
    "reach-wall-v3": reach_wall,
}
