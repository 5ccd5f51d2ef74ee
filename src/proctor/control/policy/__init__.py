"""Policies that drive a robot: inference, chunks and real time."""
