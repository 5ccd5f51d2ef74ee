"""The measured start of an episode: what tells it from other starts of its task.

Equal starts are one independent unit of every statistic, so a start is read from the simulator, right
after its reset, and never derived from a seed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from proctor.benchmarks.base import MeasuredSim, Sim
from proctor.errors import SimulatorFault
from proctor.features import Array, Feature, FeatureKind, Observation
from proctor.types import MAX_START_VALUES, Start

START_TOLERANCE = 1e-6
"""Tolerance of a simulator without one of its own: its resets repeat to the last bit."""


def start_tolerance(sim: Any) -> float:
    """Return the simulator's ``start_tolerance``, or the default."""
    return float(getattr(sim, "start_tolerance", START_TOLERANCE))


def pass_on_start(wrapper: Any, sim: Any) -> None:
    """Give the wrapper of a simulator its optional ``start_state`` and ``start_tolerance``."""
    if isinstance(sim, MeasuredSim):
        wrapper.start_state = sim.start_state
        wrapper.start_tolerance = start_tolerance(sim)


def start_values(sim: Sim, world: Array | None = None) -> Mapping[str, float]:
    """Return what ``start_state`` gives, else numbers of the physics state; empty: neither.

    ``world`` is the physics state if the caller has it.
    """
    found = sim.start_state() if isinstance(sim, MeasuredSim) else {}
    return found or condensed(sim.physics() if world is None else world)


def measured_start(sim: Sim, world: Array) -> Start | None:
    """Return the start of an episode whose simulator was just reset; None: it shows no state.

    Raises:
        SimulatorFault: a number is not finite.
    """
    found = start_values(sim, world)
    if not found:
        return None
    with np.errstate(over="ignore"):
        values = np.array(list(found.values()), np.float32) + np.float32(0)  # no negative zero
    if not np.isfinite(values).all():
        raise SimulatorFault("the simulator's start is not finite")
    digest = hashlib.blake2b("\0".join(found).encode() + values.tobytes(), digest_size=16)
    # The shortest decimals of float32, as the journal writes them.
    shortest = tuple([float(str(value)) for value in values])
    return Start(tuple(found), shortest, start_tolerance(sim), digest.hexdigest())


def observed_start(observation: Observation) -> Start:
    """Return the start of an episode whose simulator shows no state: a hash of an observation."""
    digest = hashlib.blake2b(digest_size=16)
    for key in sorted(observation):
        digest.update(key.encode() + np.ascontiguousarray(observation[key]).tobytes())
    return Start((), (), START_TOLERANCE, digest.hexdigest())


def start_keys(features: Mapping[str, Feature]) -> tuple[str, ...]:
    """Return what is observed to tell starts apart if a simulator shows no state: rather numbers."""
    for kinds in ((FeatureKind.STATE, FeatureKind.ENV), (FeatureKind.VISUAL,)):
        keys = tuple(key for key, feature in features.items() if feature.kind in kinds)
        if keys:
            return keys
    return ()


def condensed(world: Array) -> dict[str, float]:
    """Return a physics state as at most ``MAX_START_VALUES`` numbers; near states stay near.

    Each number of a long state counts in one sum, with a pseudo-random weight of 0.5 to 1 and a
    pseudo-random sign: no change of the state is lost.
    """
    numbers, most = np.asarray(world, np.float64).ravel(), MAX_START_VALUES
    if numbers.size <= most:
        return {f"state {number}": value for number, value in enumerate(numbers.tolist())}
    rows = -(-numbers.size // most)
    padded = np.zeros(rows * most)
    padded[: numbers.size] = numbers * _weights(numbers.size)
    sums = padded.reshape(rows, most).sum(axis=0)
    return {f"state sum {number}": value for number, value in enumerate(sums.tolist())}


@lru_cache(maxsize=8)
def _weights(size: int) -> Array:
    """Return the weights of a state's numbers; ``RandomState`` is the same in every numpy."""
    rng = np.random.RandomState(0)
    return rng.uniform(0.5, 1.0, size) * rng.choice((-1.0, 1.0), size)
