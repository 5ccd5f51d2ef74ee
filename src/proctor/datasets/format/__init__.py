"""Readers and writers of the files of LeRobot's dataset format."""
