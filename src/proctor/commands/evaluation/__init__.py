"""Commands that evaluate policies and show results."""
