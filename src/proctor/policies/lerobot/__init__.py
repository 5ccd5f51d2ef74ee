"""LeRobot's checkpoints, read and written."""
