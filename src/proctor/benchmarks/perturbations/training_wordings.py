"""Wordings of instructions to train on (--dataset.paraphrase_tasks), written for Proctor.

``language`` examines other wordings: those of ``paraphrases`` and its own templates. No wording of
this module is among them, so that a policy is examined on sentences that it was not trained on.
"""

from __future__ import annotations

from functools import cache

WORDINGS: dict[str, tuple[str, ...]] = {
    "Pick up a nut and place it onto a peg": (
        "Seize the nut and mount it on the peg",
        "Lift the ring nut and lower it over the post",
        "Assemble the nut and the peg",
        "Fit the round nut over the standing peg",
        "Get hold of the nut and thread it onto the pole",
    ),
    "Dunk the basketball into the basket": (
        "Put the basketball into the hoop",
        "Pick up the ball and let it fall into the basket",
        "Throw the basketball down through the net",
        "Carry the orange ball to the basket and release it",
        "Make a basket with the ball",
    ),
    "Grasp the puck from one bin and place it into another bin": (
        "Move the puck from the first bin to the second bin",
        "Pick the puck up and carry it over to the other bin",
        "Transfer the disc between the two boxes",
        "Empty the left bin: its puck goes into the right one",
        "Lift the object from its container and leave it in the neighbouring container",
    ),
    "Grasp the cover and close the box with it": (
        "Pick up the lid and close the box",
        "Put the cover onto the open box",
        "Shut the box with its lid",
        "Lift the cover and lower it over the box",
        "Cap the box with the lid that lies on the table",
    ),
    "Press a button from the top": (
        "Push down the button on top",
        "Press the red button downwards",
        "Hit the upper button from above",
        "Move down onto the button and press it",
        "Lower your hand until the top button is pressed",
    ),
    "Bypass a wall and press a button from the top": (
        "Reach over the wall and press the button downwards",
        "Avoid the wall and push the top button down",
        "Get past the barrier and hit the button from above",
        "Press the button on top, which is behind a wall",
        "Lower your hand onto the button beyond the barrier",
    ),
    "Press a button": (
        "Push the button",
        "Press the red button on the box",
        "Hit the button with your hand",
        "Move forward and press the button",
        "Poke the button until it clicks",
    ),
    "Bypass a wall and press a button": (
        "Avoid the wall and push the button",
        "Get past the barrier and press the red button",
        "Press the button that is hidden by a wall",
        "Reach around the barrier and hit the button",
        "Move by the wall, then forward into the button",
    ),
    "Push a button on the coffee machine": (
        "Press the button of the coffee machine",
        "Switch on the coffee maker",
        "Hit the coffee machine's button",
        "Make coffee by pressing the button",
        "Turn on the espresso machine with its button",
    ),
    "Pull a mug from a coffee machine": (
        "Take the mug away from the coffee machine",
        "Drag the coffee mug towards you",
        "Remove the cup from under the coffee maker",
        "Slide the mug out of the coffee machine",
        "Fetch the cup that stands at the espresso machine",
    ),
    "Push a mug under a coffee machine": (
        "Move the mug below the coffee machine",
        "Shove the coffee mug to the machine",
        "Put the cup under the coffee maker",
        "Place the mug at the coffee machine so that it can be filled",
        "Bring the cup to the espresso machine",
    ),
    "Rotate a dial 180 degrees": (
        "Turn the dial halfway around",
        "Rotate the round knob by 180 degrees",
        "Twist the dial to the other side",
        "Spin the dial half a revolution",
        "Give the rotary switch half a turn",
    ),
    "Pick a nut out of a peg": (
        "Remove the nut from the peg",
        "Take the ring nut off the post",
        "Disassemble the nut and the peg",
        "Pull the nut up and away from the pole",
        "Raise the round nut until it is free of the standing peg",
    ),
    "Close a door with a revolving joint": (
        "Shut the door",
        "Push the door closed",
        "Close the door that turns on a hinge",
        "Rotate the open door until it is closed",
        "Move the safe's door back into its frame",
    ),
    "Lock the door by rotating the lock clockwise": (
        "Lock the door",
        "Rotate the lock clockwise",
        "Turn the latch to the right and lock the door",
        "Secure the door with its lock",
        "Twist the door's lock in the direction of the clock",
    ),
    "Open a door with a revolving joint": (
        "Open the door",
        "Pull the door open by its handle",
        "Open the door that turns on a hinge",
        "Rotate the closed door until it is open",
        "Draw the safe's door towards you",
    ),
    "Unlock the door by rotating the lock counter-clockwise": (
        "Unlock the door",
        "Rotate the lock counter-clockwise",
        "Turn the latch to the left and unlock the door",
        "Release the door's lock",
        "Twist the door's lock against the direction of the clock",
    ),
    "Push and close a drawer": (
        "Close the drawer",
        "Push the drawer in",
        "Shut the open drawer",
        "Slide the drawer back into the cabinet",
        "Move the drawer until it is closed",
    ),
    "Open a drawer": (
        "Open the drawer by its handle",
        "Slide the drawer open",
        "Drag the drawer towards you",
        "Draw the closed drawer out of the cabinet",
        "Move the drawer until it is open",
    ),
    "Rotate the faucet clockwise": (
        "Turn the faucet clockwise",
        "Close the faucet",
        "Twist the water tap to the right",
        "Shut off the water at the faucet",
        "Move the faucet's handle in the direction of the clock",
    ),
    "Rotate the faucet counter-clockwise": (
        "Turn the faucet counter-clockwise",
        "Open the faucet",
        "Twist the water tap to the left",
        "Let the water run from the faucet",
        "Move the faucet's handle against the direction of the clock",
    ),
    "Hammer a screw on the wall": (
        "Hammer the nail into the wall",
        "Hit the screw with the hammer",
        "Pick up the hammer and strike the screw",
        "Drive the screw into the wall with the hammer",
        "Use the hammer to knock the nail in",
    ),
    "Insert the gripper into a hole": (
        "Put the gripper into the hole",
        "Move the hand down into the hole",
        "Lower the gripper through the hole in the table",
        "Reach into the hole",
        "Dip the robot's hand into the gap",
    ),
    "Press a handle down sideways": (
        "Push the side handle down",
        "Press down the handle that points sideways",
        "Lower the handle on the side of the box",
        "Move the sideways handle downwards",
        "Force the side lever down",
    ),
    "Press a handle down": (
        "Push the handle down",
        "Press down the handle on the box",
        "Lower the handle",
        "Move the handle downwards",
        "Force the front lever down",
    ),
    "Pull a handle up sideways": (
        "Pull the side handle up",
        "Lift the handle that points sideways",
        "Raise the handle on the side of the box",
        "Move the sideways handle upwards",
        "Draw the side lever up",
    ),
    "Pull a handle up": (
        "Pull the handle upwards",
        "Lift the handle on the box",
        "Raise the front handle",
        "Move the handle up",
        "Draw the front lever up",
    ),
    "Pull a lever down 90 degrees": (
        "Pull the lever through 90 degrees",
        "Rotate the lever by 90 degrees",
        "Move the long lever a quarter of a turn",
        "Swing the lever around by a right angle",
        "Crank the lever over",
    ),
    "Insert a peg sideways": (
        "Insert the peg into the hole on the side",
        "Push the peg into the side of the box",
        "Put the peg in the hole sideways",
        "Pick up the green peg and insert it",
        "Fit the rod into the hole at the side of the block",
    ),
    "Unplug a peg sideways": (
        "Pull the peg out of the hole on the side",
        "Remove the peg from the side of the box",
        "Unplug the plug by pulling it sideways",
        "Take the grey peg out of its hole",
        "Extract the rod from the side of the block",
    ),
    "Pick up a puck from a hole": (
        "Pick the puck out of the hole",
        "Take the puck up from the hole",
        "Raise the disc that lies in the hole",
        "Get the puck out of the gap in the table",
        "Fetch the puck from below and carry it to the goal",
    ),
    "Pick and place a puck to a goal": (
        "Pick up the puck and place it at the goal",
        "Move the puck through the air to the goal",
        "Lift the puck to the goal position",
        "Take the disc and bring it to the goal",
        "Carry the red puck to the goal",
    ),
    "Pick a puck, bypass a wall and place the puck": (
        "Pick up the puck and place it behind the wall",
        "Lift the puck over the wall to the goal",
        "Take the disc past the barrier and bring it to the goal",
        "Carry the red puck over the barrier",
        "Avoid the wall while you move the puck through the air",
    ),
    "Get a plate from the cabinet sideways": (
        "Slide the plate out of the cabinet sideways",
        "Pull the plate from the side of the cabinet",
        "Remove the plate from the cabinet to the side",
        "Bring the dish out of the side cabinet",
        "Drag the dish sideways until it leaves the goal box",
    ),
    "Get a plate from the cabinet": (
        "Slide the plate out of the cabinet",
        "Pull the plate back from the cabinet",
        "Remove the plate from the cabinet",
        "Bring the dish out of the front cabinet",
        "Drag the dish towards you until it leaves the goal box",
    ),
    "Slide a plate into a cabinet sideways": (
        "Push the plate sideways into the cabinet",
        "Move the plate into the side of the cabinet",
        "Put the plate away in the cabinet at the side",
        "Shove the dish to the side until it is inside the cabinet",
        "Store the dish in the side cabinet",
    ),
    "Slide a plate into a cabinet": (
        "Push the plate into the cabinet",
        "Move the plate forward into the cabinet",
        "Put the plate away in the cabinet",
        "Shove the dish forward until it is inside the cabinet",
        "Store the dish in the front cabinet",
    ),
    "Push the puck to a goal": (
        "Push the puck to the goal",
        "Move the puck over the table to the goal",
        "Shove the red puck to the goal position",
        "Slide the puck until it is at the goal",
        "Bring the disc along the table to the goal",
    ),
    "Bypass a wall and push a puck to a goal": (
        "Push the puck past the wall to the goal",
        "Move the puck over the table around the barrier",
        "Shove the red puck to the goal behind the wall",
        "Slide the puck by the wall until it is at the goal",
        "Bring the disc along the table, past the barrier",
    ),
    "Reach a goal position": (
        "Reach the goal",
        "Move the gripper to the goal position",
        "Go to the goal",
        "Bring your hand to the goal",
        "Hold the gripper at the goal in the air",
    ),
    "Bypass a wall and reach a goal": (
        "Reach the goal behind the wall",
        "Move the gripper past the wall to the goal",
        "Avoid the barrier and go to the goal",
        "Bring your hand around the barrier to the goal",
        "Hold the gripper at the goal beyond the wall",
    ),
    "Pick and place a puck onto a shelf": (
        "Pick up the puck and place it on the shelf",
        "Put the puck onto the shelf",
        "Lift the block to the shelf",
        "Take the block and store it on the shelf",
        "Carry the puck up to the shelf",
    ),
    "Kick a soccer into the goal": (
        "Push the ball into the goal",
        "Score a goal with the soccer ball",
        "Kick the ball into the soccer goal",
        "Roll the soccer ball into the net",
        "Hit the ball so that it ends in the goal",
    ),
    "Grasp a stick and pull a box with the stick": (
        "Pick up the stick and pull the box with it",
        "Use the stick to pull the container",
        "Hook the thermos with the stick and draw it towards you",
        "Pull the box by means of the blue stick",
        "Drag the container closer with a stick",
    ),
    "Grasp a stick and push a box using the stick": (
        "Pick up the stick and push the box with it",
        "Use the stick to push the container",
        "Push the thermos away with the stick",
        "Push the box by means of the blue stick",
        "Move the container forward with a stick",
    ),
    "Sweep a puck into a hole": (
        "Sweep the puck into the hole",
        "Push the puck over the table into the hole",
        "Let the puck fall into the hole",
        "Brush the block into the hole of the table",
        "Move the cube along the table until it drops in the hole",
    ),
    "Sweep a puck off the table": (
        "Sweep the puck from the table",
        "Push the puck off the table",
        "Let the puck fall from the side of the table",
        "Brush the block off the edge",
        "Move the cube along the table until it drops to the floor",
    ),
    "Push and open a window": (
        "Open the window",
        "Push the window open",
        "Slide the window to the side to open it",
        "Move the window's handle until the window is open",
        "Open up the sliding pane",
    ),
    "Push and close a window": (
        "Close the window",
        "Push the window closed",
        "Slide the window to the side to close it",
        "Move the window's handle until the window is closed",
        "Close up the sliding pane",
    ),
}
"""Meta-World's instructions, five wordings each."""

_FRAMES = ("please {}", "now {}", "go ahead and {}", "I want you to {}", "the robot has to {}")
"""Sentences around any instruction."""


@cache
def training_wordings(instruction: str) -> tuple[str, ...]:
    """Return other wordings of an instruction: its row of the table, and sentences around it."""
    original = instruction.strip()
    if not original:
        return ()
    inner = original[:1].lower() + original[1:].rstrip(".")
    return (*WORDINGS.get(original, ()), *(frame.format(inner) for frame in _FRAMES))
