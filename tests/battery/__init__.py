"""Attacks on every service and client: strangers and wrong peers cost little and lock nobody out."""
