"""pi0, and what its relatives share with it."""
