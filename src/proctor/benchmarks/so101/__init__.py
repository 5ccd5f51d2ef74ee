"""The SO-101 arm in simulation: kinematics, scene, world, expert and benchmark."""
