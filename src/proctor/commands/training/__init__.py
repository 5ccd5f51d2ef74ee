"""Commands that record and train."""
