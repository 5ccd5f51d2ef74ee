"""The measured start of an episode: what tells it from other starts of its task.

Equal starts are one independent unit of every statistic, so a start is read from the simulator,
right after its reset, and never derived from a seed.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from proctor.benchmarks.base import MeasuredSim, Sim
from proctor.errors import SimulatorFault
from proctor.features import Array, Feature, FeatureKind, Observation
from proctor.system.user_code import plugin_error
from proctor.types import MAX_START_VALUES, Start

START_TOLERANCE = 1e-6
"""Tolerance of a simulator without one of its own: its resets repeat to the last bit."""


def start_tolerance(sim: Any) -> float:
    """Return the simulator's ``start_tolerance``, or the default.

    Raises:
        PluginError: it is not positive.
    """
    tolerance = float(getattr(sim, "start_tolerance", START_TOLERANCE))
    if not 0 < tolerance < math.inf:
        raise plugin_error(
            sim, f"{type(sim).__name__}.start_tolerance is {tolerance:g}, not above 0"
        )
    return tolerance


def pass_on_start(wrapper: Any, sim: Any) -> None:
    """Give the wrapper of a simulator its ``start_tolerance``, and its ``start_state`` if any."""
    wrapper.start_tolerance = start_tolerance(sim)
    if isinstance(sim, MeasuredSim):
        wrapper.start_state = sim.start_state


def start_values(sim: Sim, world: Array | None = None) -> Mapping[str, float]:
    """Return what ``start_state`` gives, else numbers of the physics state; empty: neither.

    ``world`` is the physics state if the caller has it.
    """
    start_state = getattr(sim, "start_state", None)  # cheaper than isinstance(sim, MeasuredSim)
    found = {} if start_state is None else start_state()
    return found or condensed(sim.physics() if world is None else world)


def measured_start(sim: Sim, world: Array) -> Start | None:
    """Return the start of an episode whose simulator was just reset; None: it shows no state.

    Raises:
        SimulatorFault: a number is not finite.
    """
    found = start_values(sim, world)
    if not found:
        return None
    return make_start(found, start_tolerance(sim))


def make_start(found: Mapping[str, float], tolerance: float) -> Start:
    """Return the start of these numbers.

    Raises:
        SimulatorFault: a number is not finite.
    """
    scale = _decimal_scale(tolerance)
    values = np.rint(np.array(list(found.values())) * scale) / scale + 0.0  # no negative zero
    if not np.isfinite(values).all():
        raise SimulatorFault("the simulator's start is not finite")
    digest = hashlib.blake2b("\0".join(found).encode() + values.tobytes(), digest_size=16)
    return Start(tuple(found), tuple(values.tolist()), tolerance, digest.hexdigest())


@lru_cache(maxsize=8)
def _decimal_scale(tolerance: float) -> float:
    """Return the power of ten that rounds to a tenth of ``tolerance``: short decimals in JSON."""
    return float(10 ** (1 - math.floor(math.log10(tolerance))))


def observed_start(observation: Observation) -> Start:
    """Return the start of an episode whose simulator shows no state: a hash of an observation."""
    digest = hashlib.blake2b(digest_size=16)
    for key in sorted(observation):
        digest.update(key.encode() + np.ascontiguousarray(observation[key]).tobytes())
    return Start((), (), START_TOLERANCE, digest.hexdigest())


def start_keys(features: Mapping[str, Feature]) -> tuple[str, ...]:
    """Return what is observed if a simulator shows no state: its numbers, else its images."""
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
    weights: Array = rng.uniform(0.5, 1.0, size) * rng.choice((-1.0, 1.0), size)
    return weights
