"""Smooth experts of tasks in which an object is taken from above and carried."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from proctor.benchmarks.metaworld.smooth_experts.motions import (
    Grasp,
    apart,
    blend,
    lift_then_move,
    move,
    ramp,
    xyz,
)
from proctor.features import Array


def carry_over(goal: Array, height: float, near: float, far: float) -> Callable[[Array], Array]:
    """Return the motion of a held object up to ``height``, over to ``goal``, and down."""
    return lambda hand: lift_then_move(hand, goal, height, near, far)


def bin_picking(seen: Array) -> Array:
    """Put the cube into the other bin; take it near the middle of its own."""
    cube = seen[4:7] + xyz(0, 0, 0.03)
    cube[1] = np.clip(cube[1], 0.675, 0.725)  # the fingers do not fit between cube and rim
    other_bin = xyz(0.12, 0.7, 0.05)
    grasp = Grasp(closed=0.53)
    return grasp.act(seen, cube, carry_over(other_bin, 0.18, 0.02, 0.05))


def pick_out_of_hole(seen: Array) -> Array:
    """Take the puck out of its hole."""
    goal = seen[36:39] + xyz(0, 0, 0.03)

    def carry(hand: Array) -> Array:
        motion = move(hand, goal)
        motion[:2] *= 1 - ramp(goal[2] - hand[2], 0.06, 0.11)
        return motion

    grasp = Grasp(closed=0.47, opened=0.6, effort=0.6)
    return grasp.act(seen, seen[4:7] + xyz(0, 0, 0.03), carry)


def shelf_place(seen: Array) -> Array:
    """Put the block onto the shelf, from the front."""
    shelf_x = seen[36]

    def carry(hand: Array) -> Array:
        motion = move(hand, xyz(shelf_x, hand[1] + 0.05, 0.33))
        motion[1] *= 1 - max(
            ramp(0.31 - hand[2], 0.01, 0.05), ramp(abs(hand[0] - shelf_x), 0.03, 0.06)
        )
        return motion

    grasp = Grasp(too_high=0.025, closed=0.45, opened=0.6)
    return grasp.act(seen, seen[4:7] + xyz(-0.005, 0, 0.02), carry)


def disassemble(seen: Array) -> Array:
    """Lift the nut off its peg."""
    grasp = Grasp(
        height=0.1,
        gain=10.0,
        funnel=(0.01, 0.025),
        too_high=0.03,
        closed=0.6,
        opened=0.75,
        effort=1.0,
    )
    handle = seen[4:7] + xyz(-0.02, 0, 0.02)
    return grasp.act(seen, handle, lambda hand: move(hand, hand + xyz(0, 0, 0.1)))


def assembly(seen: Array) -> Array:
    """Put the nut over the peg."""
    handle = seen[4:7] + xyz(-0.02, 0, 0.04)
    over_peg = seen[36:39] + xyz(0.108, 0, 0.14)  # the ring's centre is that far from the hand

    def carry(hand: Array) -> Array:
        lift = lift_then_move(hand, over_peg, over_peg[2], 0.0, 0.01)
        return blend(
            ramp(apart(hand, over_peg), 0.015, 0.03), move(hand, over_peg - xyz(0, 0, 0.2)), lift
        )

    return Grasp(too_high=0.025).act(seen, handle, carry)


def hand_insert(seen: Array) -> Array:
    """Hold the block and put the hand with it into the hole."""
    goal = seen[36:39]
    grasp = Grasp(closed=0.42, opened=0.6)
    return grasp.act(seen, seen[4:7] + xyz(0, 0, 0.035), carry_over(goal, 0.12, 0.02, 0.05))


def pick_place_wall(seen: Array) -> Array:
    """Lift the puck over the wall and put it down behind."""
    goal = seen[36:39] + xyz(0, 0, 0.04)
    grasp = Grasp(closed=0.5, opened=0.65)
    return grasp.act(seen, seen[4:7] + xyz(-0.005, 0, 0.04), carry_over(goal, 0.29, 0.02, 0.05))


def basketball(seen: Array) -> Array:
    """Drop the ball into the hoop."""
    hoop = xyz(seen[36], 0.875, 0.35)
    grasp = Grasp(closed=0.66, opened=0.75, too_high=0.01)
    return grasp.act(seen, seen[4:7] + xyz(0, 0, 0.03), carry_over(hoop, 0.35, 0.02, 0.05))


def box_close(seen: Array) -> Array:
    """Put the lid onto the box."""
    box = xyz(seen[36], seen[37], 0.15)
    grasp = Grasp(closed=0.4, opened=0.6, effort=1.0)
    return grasp.act(seen, seen[4:7] + xyz(0, 0, 0.07), carry_over(box, 0.16, 0.0, 0.02))


def peg_insert_side(seen: Array) -> Array:
    """Take the peg, align it with the hole and push it in."""
    peg, goal = seen[4:7], seen[36:39]

    def carry(hand: Array) -> Array:
        aside = goal[1:] - peg[1:]
        off = float(np.hypot(*aside))
        target = hand + xyz(0, *aside)
        target[0] = blend(ramp(off, 0.012, 0.03), hand[0] - 0.1, 0.05)
        motion = move(hand, target)
        motion[1] *= 1 - ramp(goal[2] - peg[2], 0.04, 0.08)  # first lift
        motion[0] *= 1 - ramp(goal[2] - peg[2], 0.04, 0.08)
        return motion

    grasp = Grasp(closed=0.4, opened=0.6)
    return grasp.act(seen, peg + xyz(0, 0, 0.024), carry)


GRASPING = {
    "peg-insert-side-v3": peg_insert_side,
    "assembly-v3": assembly,
    "basketball-v3": basketball,
    "box-close-v3": box_close,
    "hand-insert-v3": hand_insert,
    "pick-place-wall-v3": pick_place_wall,
    "bin-picking-v3": bin_picking,
    "disassemble-v3": disassemble,
    "pick-out-of-hole-v3": pick_out_of_hole,
    "shelf-place-v3": shelf_place,
}
