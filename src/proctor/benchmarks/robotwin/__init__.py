"""RoboTwin 2.0: 50 bimanual tasks."""
