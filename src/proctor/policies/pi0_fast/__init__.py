"""pi0-FAST (Pertsch et al., 2025)."""
