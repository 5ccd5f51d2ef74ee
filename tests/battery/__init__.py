"""Attacks on services and clients: strangers and wrong peers cost little and lock nobody out."""
