"""PushT (Chi et al., 2023): push a T-shaped block onto its target."""

COVERAGE = "coverage"
"""Score: the part of the target that the block covers, 0 to 1."""
