"""Sections of settings that commands share."""
