"""pi0.5 (Physical Intelligence, 2025)."""
