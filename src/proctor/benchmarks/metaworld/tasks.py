"""The 50 tasks of Meta-World: their ids, names, splits, instructions and scripted policies.

Ids, instructions and splits are those of LeRobot's ``metaworld_config.json``, so results and
datasets use the same names. Data only.
"""

from __future__ import annotations

from typing import NamedTuple


class MetaworldTask(NamedTuple):
    """A task: Meta-World's name, and LeRobot's id, split and instruction."""

    task_id: int
    name: str
    split: str
    instruction: str
    policy: str
    """Class in ``metaworld.policies`` that solves the task."""


# One row per task, however wide.
# ruff: noqa: E501
# fmt: off
TASKS: tuple[MetaworldTask, ...] = (
    MetaworldTask(0, "assembly-v3", "hard", "Pick up a nut and place it onto a peg", "SawyerAssemblyV3Policy"),
    MetaworldTask(1, "basketball-v3", "medium", "Dunk the basketball into the basket", "SawyerBasketballV3Policy"),
    MetaworldTask(2, "bin-picking-v3", "medium", "Grasp the puck from one bin and place it into another bin", "SawyerBinPickingV3Policy"),
    MetaworldTask(3, "box-close-v3", "medium", "Grasp the cover and close the box with it", "SawyerBoxCloseV3Policy"),
    MetaworldTask(4, "button-press-topdown-v3", "easy", "Press a button from the top", "SawyerButtonPressTopdownV3Policy"),
    MetaworldTask(5, "button-press-topdown-wall-v3", "easy", "Bypass a wall and press a button from the top", "SawyerButtonPressTopdownWallV3Policy"),
    MetaworldTask(6, "button-press-v3", "easy", "Press a button", "SawyerButtonPressV3Policy"),
    MetaworldTask(7, "button-press-wall-v3", "easy", "Bypass a wall and press a button", "SawyerButtonPressWallV3Policy"),
    MetaworldTask(8, "coffee-button-v3", "easy", "Push a button on the coffee machine", "SawyerCoffeeButtonV3Policy"),
    MetaworldTask(9, "coffee-pull-v3", "medium", "Pull a mug from a coffee machine", "SawyerCoffeePullV3Policy"),
    MetaworldTask(10, "coffee-push-v3", "medium", "Push a mug under a coffee machine", "SawyerCoffeePushV3Policy"),
    MetaworldTask(11, "dial-turn-v3", "easy", "Rotate a dial 180 degrees", "SawyerDialTurnV3Policy"),
    MetaworldTask(12, "disassemble-v3", "very_hard", "Pick a nut out of a peg", "SawyerDisassembleV3Policy"),
    MetaworldTask(13, "door-close-v3", "easy", "Close a door with a revolving joint", "SawyerDoorCloseV3Policy"),
    MetaworldTask(14, "door-lock-v3", "easy", "Lock the door by rotating the lock clockwise", "SawyerDoorLockV3Policy"),
    MetaworldTask(15, "door-open-v3", "easy", "Open a door with a revolving joint", "SawyerDoorOpenV3Policy"),
    MetaworldTask(16, "door-unlock-v3", "easy", "Unlock the door by rotating the lock counter-clockwise", "SawyerDoorUnlockV3Policy"),
    MetaworldTask(17, "drawer-close-v3", "easy", "Push and close a drawer", "SawyerDrawerCloseV3Policy"),
    MetaworldTask(18, "drawer-open-v3", "easy", "Open a drawer", "SawyerDrawerOpenV3Policy"),
    MetaworldTask(19, "faucet-close-v3", "easy", "Rotate the faucet clockwise", "SawyerFaucetCloseV3Policy"),
    MetaworldTask(20, "faucet-open-v3", "easy", "Rotate the faucet counter-clockwise", "SawyerFaucetOpenV3Policy"),
    MetaworldTask(21, "hammer-v3", "medium", "Hammer a screw on the wall", "SawyerHammerV3Policy"),
    MetaworldTask(22, "hand-insert-v3", "hard", "Insert the gripper into a hole", "SawyerHandInsertV3Policy"),
    MetaworldTask(23, "handle-press-side-v3", "easy", "Press a handle down sideways", "SawyerHandlePressSideV3Policy"),
    MetaworldTask(24, "handle-press-v3", "easy", "Press a handle down", "SawyerHandlePressV3Policy"),
    MetaworldTask(25, "handle-pull-side-v3", "easy", "Pull a handle up sideways", "SawyerHandlePullSideV3Policy"),
    MetaworldTask(26, "handle-pull-v3", "easy", "Pull a handle up", "SawyerHandlePullV3Policy"),
    MetaworldTask(27, "lever-pull-v3", "easy", "Pull a lever down 90 degrees", "SawyerLeverPullV3Policy"),
    MetaworldTask(28, "peg-insert-side-v3", "medium", "Insert a peg sideways", "SawyerPegInsertionSideV3Policy"),
    MetaworldTask(29, "peg-unplug-side-v3", "easy", "Unplug a peg sideways", "SawyerPegUnplugSideV3Policy"),
    MetaworldTask(30, "pick-out-of-hole-v3", "hard", "Pick up a puck from a hole", "SawyerPickOutOfHoleV3Policy"),
    MetaworldTask(31, "pick-place-v3", "hard", "Pick and place a puck to a goal", "SawyerPickPlaceV3Policy"),
    MetaworldTask(32, "pick-place-wall-v3", "very_hard", "Pick a puck, bypass a wall and place the puck", "SawyerPickPlaceWallV3Policy"),
    MetaworldTask(33, "plate-slide-back-side-v3", "easy", "Get a plate from the cabinet sideways", "SawyerPlateSlideBackSideV3Policy"),
    MetaworldTask(34, "plate-slide-back-v3", "easy", "Get a plate from the cabinet", "SawyerPlateSlideBackV3Policy"),
    MetaworldTask(35, "plate-slide-side-v3", "easy", "Slide a plate into a cabinet sideways", "SawyerPlateSlideSideV3Policy"),
    MetaworldTask(36, "plate-slide-v3", "easy", "Slide a plate into a cabinet", "SawyerPlateSlideV3Policy"),
    MetaworldTask(37, "push-back-v3", "hard", "Push the puck to a goal", "SawyerPushBackV3Policy"),
    MetaworldTask(38, "push-v3", "hard", "Push the puck to a goal", "SawyerPushV3Policy"),
    MetaworldTask(39, "push-wall-v3", "medium", "Bypass a wall and push a puck to a goal", "SawyerPushWallV3Policy"),
    MetaworldTask(40, "reach-v3", "easy", "Reach a goal position", "SawyerReachV3Policy"),
    MetaworldTask(41, "reach-wall-v3", "easy", "Bypass a wall and reach a goal", "SawyerReachWallV3Policy"),
    MetaworldTask(42, "shelf-place-v3", "very_hard", "Pick and place a puck onto a shelf", "SawyerShelfPlaceV3Policy"),
    MetaworldTask(43, "soccer-v3", "medium", "Kick a soccer into the goal", "SawyerSoccerV3Policy"),
    MetaworldTask(44, "stick-pull-v3", "very_hard", "Grasp a stick and pull a box with the stick", "SawyerStickPullV3Policy"),
    MetaworldTask(45, "stick-push-v3", "very_hard", "Grasp a stick and push a box using the stick", "SawyerStickPushV3Policy"),
    MetaworldTask(46, "sweep-into-v3", "medium", "Sweep a puck into a hole", "SawyerSweepIntoV3Policy"),
    MetaworldTask(47, "sweep-v3", "medium", "Sweep a puck off the table", "SawyerSweepV3Policy"),
    MetaworldTask(48, "window-open-v3", "easy", "Push and open a window", "SawyerWindowOpenV3Policy"),
    MetaworldTask(49, "window-close-v3", "easy", "Push and close a window", "SawyerWindowCloseV3Policy"),
)
# fmt: on

# The order inside a split defines the task ids in its results.
SPLITS: dict[str, tuple[str, ...]] = {
    "easy": (
        "button-press-v3",
        "button-press-topdown-v3",
        "button-press-topdown-wall-v3",
        "button-press-wall-v3",
        "coffee-button-v3",
        "dial-turn-v3",
        "door-close-v3",
        "door-lock-v3",
        "door-open-v3",
        "door-unlock-v3",
        "drawer-close-v3",
        "drawer-open-v3",
        "faucet-close-v3",
        "faucet-open-v3",
        "handle-press-v3",
        "handle-press-side-v3",
        "handle-pull-v3",
        "handle-pull-side-v3",
        "lever-pull-v3",
        "plate-slide-v3",
        "plate-slide-back-v3",
        "plate-slide-back-side-v3",
        "plate-slide-side-v3",
        "reach-v3",
        "reach-wall-v3",
        "window-close-v3",
        "window-open-v3",
        "peg-unplug-side-v3",
    ),
    "medium": (
        "basketball-v3",
        "bin-picking-v3",
        "box-close-v3",
        "coffee-pull-v3",
        "coffee-push-v3",
        "hammer-v3",
        "peg-insert-side-v3",
        "push-wall-v3",
        "soccer-v3",
        "sweep-v3",
        "sweep-into-v3",
    ),
    "hard": (
        "assembly-v3",
        "hand-insert-v3",
        "pick-out-of-hole-v3",
        "pick-place-v3",
        "push-v3",
        "push-back-v3",
    ),
    "very_hard": (
        "shelf-place-v3",
        "disassemble-v3",
        "stick-pull-v3",
        "stick-push-v3",
        "pick-place-wall-v3",
    ),
}
