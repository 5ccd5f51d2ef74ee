"""This machine: memory, packages, environment variables."""
