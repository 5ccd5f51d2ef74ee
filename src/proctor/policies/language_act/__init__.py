"""ACT (Zhao et al., 2023) conditioned on language."""
