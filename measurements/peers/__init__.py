"""Proctor beside LeRobot and vla-eval; ``run.py`` is the measurement."""
