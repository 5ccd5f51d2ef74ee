"""Rates, differences and when to stop."""
