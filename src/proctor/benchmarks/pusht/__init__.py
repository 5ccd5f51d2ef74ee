"""PushT (Chi et al., 2023): push a T-shaped block onto its target."""
