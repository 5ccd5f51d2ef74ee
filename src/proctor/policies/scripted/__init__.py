"""Policies without weights."""
