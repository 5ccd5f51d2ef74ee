"""GR00T (NVIDIA, 2025): a vision-language model and a diffusion transformer for many robots."""
