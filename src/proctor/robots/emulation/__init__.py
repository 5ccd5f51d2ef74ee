"""Emulated servos, a simulated SO-101 and its cell: robots without hardware."""
