"""Worlds that run in another interpreter: one module each, with ``make(config) -> World``."""
