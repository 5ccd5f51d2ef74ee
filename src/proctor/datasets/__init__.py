"""Demonstrations in LeRobot's dataset format: read, written, checked, edited."""
