"""Imported by LeRobot, never called here."""
