"""Success under perturbation."""
