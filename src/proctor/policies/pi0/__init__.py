"""pi0 (Black et al., 2024), and the parts that pi0.5 and pi0-FAST share with it."""
