"""Reward classifier of HIL-SERL: whether images show a success."""
