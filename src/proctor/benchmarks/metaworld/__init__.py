"""Meta-World v3."""
