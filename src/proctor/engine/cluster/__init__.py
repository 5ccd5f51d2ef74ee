"""Engines of several machines."""
