"""Meta-World v3 (Yu et al., 2019)."""
