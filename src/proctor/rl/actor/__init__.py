"""The actor's process."""
