"""Fixed actions that both sides execute, so that their episodes can be compared."""

import numpy as np

HAND = 6


def chunk_of_actions(episode: int, step: int, length: int) -> np.ndarray:
    """Return LIBERO's actions from ``step`` on: small random moves, the gripper open or closed.

    The gripper is never in between, which vla-eval would round.
    """
    generator = np.random.default_rng([episode, step])
    moves = generator.uniform(-0.5, 0.5, (length, HAND))
    gripper = np.full((length, 1), generator.choice([-1.0, 1.0]))
    return np.concatenate([moves, gripper], axis=1).astype(np.float32)  # [length, 7]
