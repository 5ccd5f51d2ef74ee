"""Episodes of made-up transitions for tests of replay buffers and journals."""

from __future__ import annotations

import numpy as np

from proctor.rl.transitions import Transition

FRONT = "observation.images.front"
STATE = "observation.state"


def episode(
    n: int, seed: int = 0, *, truncated: bool = False, size: tuple[int, int] | None = (6, 8)
) -> list[Transition]:
    """Return ``n`` consecutive steps; the last one ends the episode."""
    rng = np.random.default_rng(seed)
    seen = [_observation(rng, size) for _ in range(n + 1)]
    return [
        Transition(
            seen[i],
            rng.normal(size=4).astype(np.float32),
            float(rng.integers(0, 9)),
            seen[i + 1],
            done=i == n - 1 and not truncated,
            truncated=i == n - 1 and truncated,
            complementary_info={"discrete_penalty": -0.5, "is_intervention": float(i % 2)},
        )
        for i in range(n)
    ]


def _observation(rng: np.random.Generator, size: tuple[int, int] | None) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {STATE: rng.normal(size=3).astype(np.float32)}
    if size is not None:
        found[FRONT] = rng.integers(0, 256, (3, *size)).astype(np.uint8)
    return found


def assert_same(found: Transition, expected: Transition) -> None:
    """Compare all values bit by bit."""
    assert found.observation.keys() == expected.observation.keys()
    for key in expected.observation:
        np.testing.assert_array_equal(found.observation[key], expected.observation[key])
        np.testing.assert_array_equal(found.next_observation[key], expected.next_observation[key])
    np.testing.assert_array_equal(found.action, expected.action)
    assert (found.reward, found.done, found.truncated) == (
        expected.reward,
        expected.done,
        expected.truncated,
    )
    assert found.complementary_info == expected.complementary_info
