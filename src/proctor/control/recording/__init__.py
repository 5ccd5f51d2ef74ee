"""Episodes of a robot, recorded into a dataset."""
