"""Proctor examines robot policies in simulation."""
