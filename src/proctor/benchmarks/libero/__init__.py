"""LIBERO: five suites of tasks on robosuite."""
