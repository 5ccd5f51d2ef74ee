"""The measured start of an episode: what tells it from other starts of its task.

Equal starts are one independent unit of every statistic, so a start is read from the simulator,
right after its reset, and never derived from a seed.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from proctor.benchmarks.base import Benchmark, MeasuredSim, Sim
from proctor.features import Array, Feature, FeatureKind, Observation
from proctor.starts import StartSource, condensed, make_start
from proctor.system.user_code import plugin_error
from proctor.types import Start

if TYPE_CHECKING:
    import numpy as np
else:  # `proctor eval --help` comes here
    from proctor_worker.lazy_numpy import np

START_TOLERANCE = 1e-6
"""Tolerance of a simulator without one of its own: its resets repeat to the last bit."""


def start_tolerance(sim: Any) -> float:
    """Return the simulator's ``start_tolerance``, or the default."""
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
    """Return the start of an episode whose simulator was just reset; None: it shows no state."""
    found = start_values(sim, world)
    if not found:
        return None
    return make_start(found, start_tolerance(sim))


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


def start_source(benchmark: Benchmark) -> StartSource:
    """Return the benchmark, and the version of the distribution that defines its starts."""
    from proctor.system.platform.platform_info import installed_versions

    name = benchmark.starts_of or benchmark.name
    main = benchmark.distributions[:1]
    if main:
        return StartSource(name, f"{main[0]} {installed_versions(main).get(main[0], 'unknown')}")
    interpreter = benchmark.protocol().get("interpreter")
    if not interpreter:
        return StartSource(name, "")
    known = interpreter.get("distributions", {})
    return StartSource(name, ", ".join(f"{one} {known[one]}" for one in known if one != "numpy"))
