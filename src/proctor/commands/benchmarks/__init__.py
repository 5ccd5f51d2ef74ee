"""``proctor benchmarks VERB``."""
