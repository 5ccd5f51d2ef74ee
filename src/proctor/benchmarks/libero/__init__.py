"""LIBERO (Liu et al., 2023): five suites of manipulation tasks on robosuite."""
