"""Robots, teleoperators, cameras and motor buses."""
