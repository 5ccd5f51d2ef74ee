"""The clock of a robot's control loop, its frames and its signals."""
