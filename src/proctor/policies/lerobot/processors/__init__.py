"""LeRobot's processor pipelines."""
