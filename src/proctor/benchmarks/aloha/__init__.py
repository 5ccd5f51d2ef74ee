"""ALOHA in simulation (Zhao et al., 2023)."""
