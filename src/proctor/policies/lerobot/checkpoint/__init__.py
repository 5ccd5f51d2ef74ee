"""Files of LeRobot's checkpoints."""
