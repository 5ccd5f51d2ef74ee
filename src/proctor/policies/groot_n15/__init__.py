"""GR00T N1.5 (NVIDIA, 2025): the Eagle backbone and a smaller diffusion transformer."""
