"""ALOHA in simulation."""
