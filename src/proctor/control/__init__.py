"""Control loops: teleoperate, record, replay, roll out and evaluate on a robot."""
