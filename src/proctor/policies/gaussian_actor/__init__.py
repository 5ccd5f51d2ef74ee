"""Gaussian actor: the policy that SAC trains online (HIL-SERL)."""
