"""ACT conditioned on language."""
