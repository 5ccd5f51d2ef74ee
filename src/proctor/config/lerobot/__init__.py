"""LeRobot's flags, translated into Proctor's."""
