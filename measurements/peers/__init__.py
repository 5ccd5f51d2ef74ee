"""Proctor compared with LeRobot and vla-eval; ``run.py`` is the measurement."""
