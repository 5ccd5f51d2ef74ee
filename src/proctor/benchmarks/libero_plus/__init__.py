"""LIBERO-plus (Fei et al., 2025): LIBERO's tasks under seven kinds of perturbation."""
