"""pi0-FAST."""
