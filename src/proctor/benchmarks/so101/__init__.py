"""The SO-101 arm in simulation: kinematics, scene, world, expert and benchmark."""

FPS = 30
"""Actions per second."""
