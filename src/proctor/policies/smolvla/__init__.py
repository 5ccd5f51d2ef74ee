"""SmolVLA (Shukor et al., 2025)."""
