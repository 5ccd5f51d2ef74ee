"""LeRobot's pickles, read and written without executing anything."""
