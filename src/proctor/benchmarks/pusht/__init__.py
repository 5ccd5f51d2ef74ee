"""PushT."""
