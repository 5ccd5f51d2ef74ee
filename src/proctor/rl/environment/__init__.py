"""Environments of actors, and their processors."""
