"""LIBERO-Pro: LIBERO's tasks with other places, objects, instructions or goals."""
