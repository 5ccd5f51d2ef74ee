"""Paraphrases of instructions, written for Proctor: original -> (other verbs, goal described).

LIBERO's instructions have few forms, so templates in ``language`` paraphrase them.
"""

from __future__ import annotations

PARAPHRASES: dict[str, tuple[str, str]] = {
    # Meta-World
    "Pick up a nut and place it onto a peg": (
        "Grasp the nut and slip it over the peg",
        "The nut should sit around the peg when you are done",
    ),
    "Dunk the basketball into the basket": (
        "Drop the ball through the hoop",
        "The basketball should fall through the ring",
    ),
    "Grasp the puck from one bin and place it into another bin": (
        "Take the puck out of its bin and drop it in the other one",
        "The puck is in the wrong bin, so change that",
    ),
    "Grasp the cover and close the box with it": (
        "Take the lid and put it on the box",
        "The box should not stay open, and its lid lies beside it",
    ),
    "Press a button from the top": (
        "Push the button down from above",
        "The button that faces upwards has to be down",
    ),
    "Bypass a wall and press a button from the top": (
        "Go around the wall and push the button down from above",
        "Behind the wall is a button that faces upwards, and it has to be down",
    ),
    "Press a button": ("Push the button in", "The button in front of you has to be triggered"),
    "Bypass a wall and press a button": (
        "Go around the wall and push the button in",
        "Behind the wall is a button that has to be triggered",
    ),
    "Push a button on the coffee machine": (
        "Press the key of the coffee maker",
        "Start the machine that makes coffee",
    ),
    "Pull a mug from a coffee machine": (
        "Drag the cup away from the coffee maker",
        "The cup is filled, so bring it back from the machine",
    ),
    "Push a mug under a coffee machine": (
        "Slide the cup below the spout of the coffee maker",
        "The machine is about to pour, so the cup has to stand below it",
    ),
    "Rotate a dial 180 degrees": (
        "Turn the knob by half a turn",
        "The knob should point in the opposite direction",
    ),
    "Pick a nut out of a peg": (
        "Grasp the nut and lift it off the peg",
        "The peg should be empty, without the nut around it",
    ),
    "Close a door with a revolving joint": (
        "Swing the hinged door shut",
        "The door should not stand open any more",
    ),
    "Lock the door by rotating the lock clockwise": (
        "Turn the bolt clockwise until the door is locked",
        "Nobody should be able to open this door",
    ),
    "Open a door with a revolving joint": (
        "Swing the hinged door wide",
        "I need to get through the door that is shut",
    ),
    "Unlock the door by rotating the lock counter-clockwise": (
        "Turn the bolt counter-clockwise until the door is free",
        "The door is locked, and it should not be",
    ),
    "Push and close a drawer": (
        "Shove the drawer shut",
        "The drawer should not jut out any more",
    ),
    "Open a drawer": ("Pull the drawer out", "I need what is inside of the drawer"),
    "Rotate the faucet clockwise": (
        "Turn the tap clockwise",
        "The tap should move like the hands of a clock",
    ),
    "Rotate the faucet counter-clockwise": (
        "Turn the tap counter-clockwise",
        "The tap should move against the hands of a clock",
    ),
    "Hammer a screw on the wall": (
        "Take the hammer and hit the screw into the wall",
        "The screw sticks out of the wall, and a tool lies in front of you",
    ),
    "Insert the gripper into a hole": (
        "Put the hand into the opening",
        "Your fingers should be inside of the opening in front of you",
    ),
    "Press a handle down sideways": (
        "Push the bar at the side downwards",
        "The bar at the side should point to the floor",
    ),
    "Press a handle down": (
        "Push the bar downwards",
        "The bar in front of you should point to the floor",
    ),
    "Pull a handle up sideways": (
        "Raise the bar at the side",
        "The bar at the side should be up",
    ),
    "Pull a handle up": ("Raise the bar", "The bar in front of you should be up"),
    "Pull a lever down 90 degrees": (
        "Turn the lever by a quarter turn",
        "The long lever should stand at a right angle to where it is now",
    ),
    "Insert a peg sideways": (
        "Push the rod into the opening at the side",
        "The rod should fill the opening at the side of the block",
    ),
    "Unplug a peg sideways": (
        "Draw the rod out of the opening at the side",
        "The rod should not be in the socket any more",
    ),
    "Pick up a puck from a hole": (
        "Lift the puck out of the opening",
        "The puck should not stay in the ground",
    ),
    "Pick and place a puck to a goal": (
        "Grasp the puck and carry it to the target",
        "The puck should hover where the marker is",
    ),
    "Pick a puck, bypass a wall and place the puck": (
        "Grasp the puck and carry it around the wall to the target",
        "The puck should hover behind the wall, where the marker is",
    ),
    "Get a plate from the cabinet sideways": (
        "Take the disc out of the cupboard towards the side",
        "The disc should not stay in the cupboard beside you",
    ),
    "Get a plate from the cabinet": (
        "Take the disc out of the cupboard",
        "The disc should not stay in the cupboard",
    ),
    "Slide a plate into a cabinet sideways": (
        "Push the disc into the cupboard at the side",
        "The disc belongs into the cupboard beside you",
    ),
    "Slide a plate into a cabinet": (
        "Push the disc into the cupboard",
        "The disc belongs into the cupboard",
    ),
    "Push the puck to a goal": (
        "Slide the disc to the target",
        "The disc should lie where the marker is",
    ),
    "Bypass a wall and push a puck to a goal": (
        "Slide the disc around the wall to the target",
        "The disc should lie behind the wall, where the marker is",
    ),
    "Reach a goal position": (
        "Move the hand to the target",
        "Your fingers should be where the marker is",
    ),
    "Bypass a wall and reach a goal": (
        "Move the hand around the wall to the target",
        "Your fingers should be behind the wall, where the marker is",
    ),
    "Pick and place a puck onto a shelf": (
        "Grasp the puck and put it on the rack",
        "The puck belongs on the raised board",
    ),
    "Kick a soccer into the goal": (
        "Push the football into the net",
        "Score with the football",
    ),
    "Grasp a stick and pull a box with the stick": (
        "Take the stick and drag the box with it",
        "The box should come closer, and only the tool can reach it",
    ),
    "Grasp a stick and push a box using the stick": (
        "Take the stick and shove the box with it",
        "The box should move away, and only the tool can reach it",
    ),
    "Sweep a puck into a hole": (
        "Wipe the disc into the opening",
        "The disc should disappear in the ground",
    ),
    "Sweep a puck off the table": (
        "Wipe the disc over the edge of the table",
        "The table should be empty, without the disc",
    ),
    "Push and open a window": (
        "Slide the window open",
        "Some fresh air would be nice, and the window is shut",
    ),
    "Push and close a window": (
        "Slide the window shut",
        "It gets cold, and the window is open",
    ),
    # ALOHA, SO-101, gym_hil, PushT and the fake benchmark
    "Insert the peg into the socket.": (
        "Push the stick into the holder",
        "Both parts belong together, one inside of the other",
    ),
    "Pick up the cube with the right arm and transfer it to the left arm.": (
        "Grasp the cube with the right hand and pass it to the left hand",
        "Your left hand should end up with the cube, and only the right one can reach it",
    ),
    "Pick up the cube and put it into the bin.": (
        "Grasp the cube and drop it in the box",
        "The table should be tidy, with the cube in its container",
    ),
    "Pick up the cube.": ("Grasp the cube and lift it", "The cube should not lie on the table"),
    "Put every box on the target of its colour.": (
        "Move each block to the field with the same colour",
        "Blocks and fields should match in colour",
    ),
    "Push the T-shaped block onto the T-shaped target.": (
        "Slide the grey T until it covers the green T",
        "No part of the green outline should be visible",
    ),
    "reach the goal": ("move to the target", "you should be where the marker is"),
    # Isolated benchmarks, where templates would state another task's goal
    "move the cube to the goal": (
        "carry the cube to the target",
        "the cube should hover where the marker is",
    ),
    "push the cube to the goal": (
        "slide the cube away from you to the target",
        "the cube should lie further away, where the marker is",
    ),
    "pull the cube to the goal": (
        "drag the cube towards you to the target",
        "the cube should lie nearer to you, where the marker is",
    ),
    "put the money away in the safe on the bottom shelf": (
        "set the money down in the safe, on its bottom shelf",
        "the money should end up in the safe, on its bottom shelf",
    ),
}
