"""Contract checks for your own benchmark or policy, for use in a test or a shell::

    check_sim(MyBenchmark(config))
    check_policy(MyPolicy(config, interface_of(benchmark)), benchmark)

Each raises AssertionError with the rule that is broken.
"""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from proctor.benchmarks.base import (
    Benchmark,
    BenchmarkConfig,
    LocatedSim,
    MeasuredSim,
    Sim,
    with_defaults,
)
from proctor.benchmarks.checks import is_text_tuple
from proctor.benchmarks.starts import measured_start, observed_start, start_keys
from proctor.engine.chunks import checked_chunks
from proctor.errors import UsageError
from proctor.features import Array, Feature, FeatureKind, Observation
from proctor.policies.base import Batch, Policy, Query
from proctor.system.global_rng import SEED_BEFORE_RESET, IsolatedRng, seed_global_rng
from proctor.types import MAX_START_VALUES, EpisodeSpec, Start, Task

_GAP = 10
"""Least distance of different starts, in tolerances."""


def check_sim(
    benchmark: Benchmark,
    task: Task | None = None,
    *,
    n_steps: int = 10,
    keys: Sequence[str] | None = None,
    config: BenchmarkConfig | None = None,
    make: Callable[[Any], Benchmark] | None = None,
) -> None:
    """Check a benchmark's contract on one task (by default its first), with ``n_steps`` steps.

    Args:
        benchmark: the benchmark.
        task: the task.
        n_steps: steps of each episode.
        keys: limits the observed features (default: all; leave out images to save time).
        config: the config that the benchmark was made from, if it is not an attribute of it.
        make: makes the benchmark from a config (default: its class).

    Raises:
        AssertionError: naming the rule that is broken.
    """
    benchmark = with_defaults(benchmark)
    assert is_text_tuple(benchmark.warnings), "warnings is not a tuple of texts"
    assert is_text_tuple(benchmark.notes), "notes is not a tuple of texts"
    assert isinstance(benchmark.judged, bool), "judged is not a bool"
    tasks = benchmark.tasks()
    assert tasks, "the benchmark lists no task"
    assert len({t.key for t in tasks}) == len(tasks), "two tasks share (suite, task_id)"
    assert tasks == benchmark.tasks(), "listing the tasks twice gives different lists"
    assert json.loads(json.dumps(benchmark.protocol())), "the protocol is not JSON, or empty"
    task = task or tasks[0]
    assert pickle.loads(pickle.dumps(task)) == task, "the task does not survive pickling"  # noqa: S301
    keys = tuple(benchmark.features() if keys is None else keys)
    spec, other = benchmark.spec(task, 0, 1000), benchmark.spec(task, 1, 1000)
    assert spec == benchmark.spec(task, 0, 1000), "spec() called twice gives different specs"
    assert spec != other, "two episodes of a task have the same spec"

    with IsolatedRng().activated():
        _check_task_ids(tasks, config or _config_of(benchmark), make or type(benchmark))
        fresh = _trace(benchmark, _open(benchmark, task), spec, n_steps, keys)
        sim = _open(benchmark, task)
        different = _play(benchmark, sim, other, n_steps, keys)
        used = _play(benchmark, sim, spec, n_steps, keys)
        unobserved = _play(benchmark, sim, spec, n_steps, ())
        renumbered = _play(benchmark, sim, replace(spec, index=spec.index + 1), n_steps, ())
        sim.close()
    assert used == fresh, "a used simulator gives another episode than a fresh one"
    assert different != fresh, "two specs give the same episode"
    assert unobserved.physics == fresh.physics, "observing changes the episode"
    assert renumbered.physics == fresh.physics, (
        "an episode depends on its index; it must depend on seed and init state only"
    )
    _check_gap(fresh.start, different.start)


def _config_of(benchmark: Benchmark) -> BenchmarkConfig:
    attributes = getattr(benchmark, "__dict__", {}).values()
    config = next((value for value in attributes if isinstance(value, BenchmarkConfig)), None)
    assert config is not None, (
        "the benchmark keeps no config, so --env.task_ids cannot be checked; pass config=..."
    )
    return config


def _check_task_ids(
    tasks: Sequence[Task], config: BenchmarkConfig, make: Callable[[Any], Benchmark]
) -> None:
    """Check that ``--env.task_ids`` selects tasks, and that an id without a task is refused."""
    last = tasks[-1].task_id
    chosen = make(replace(config, task_ids=[last])).tasks()
    assert chosen == [task for task in tasks if task.task_id == last], (
        f"--env.task_ids=[{last}] selects {[task.key for task in chosen]}"
    )
    missing = max(task.task_id for task in tasks) + 1_000_000
    try:
        chosen = make(replace(config, task_ids=[missing])).tasks()
    except UsageError:
        return
    raise AssertionError(
        f"--env.task_ids=[{missing}], which no task has, selects {[task.key for task in chosen]}"
    )


def check_policy(
    policy: Policy, benchmark: Benchmark, *, n_queries: int = 3, tolerance: float = 0.0
) -> None:
    """Check a policy's contract: shapes, per-episode state, and independence of batch rows.

    ``tolerance`` allows for kernels that round differently at other batch sizes; 0 requires the
    same bits.

    Raises:
        AssertionError: naming the rule that is broken.
        PolicyError: the policy returned an invalid action chunk.
    """
    assert policy.spec.n_obs_steps >= 1, "n_obs_steps must be at least 1"
    length = policy.spec.n_action_steps
    assert length is None or length >= 1, "n_action_steps must be at least 1, or None"
    features = benchmark.features()
    unknown = [key for key in policy.spec.inputs if key not in features]
    assert not unknown, f"the policy needs {unknown}, which {benchmark.name} does not offer"
    assert json.dumps(policy.protocol()) is not None
    tasks = benchmark.tasks()
    specs = [benchmark.spec(tasks[i % len(tasks)], i, 1000) for i in range(4)]
    together = _query(policy, benchmark, specs, n_queries)
    for row, spec in enumerate(specs):
        (alone,) = _query(policy, benchmark, [spec], n_queries)
        same_length = len(alone) == len(together[row])
        worst = float(np.abs(alone - together[row]).max()) if same_length else np.inf
        assert worst <= tolerance, (
            f"episode {row} gets other actions in a batch of 4 than alone (difference {worst:g})"
        )
    again = _query(policy, benchmark, specs, n_queries)
    assert all(map(np.array_equal, again, together)), "the same queries repeated give other actions"


def _open(benchmark: Benchmark, task: Task) -> Sim:
    seed_global_rng(SEED_BEFORE_RESET)
    return benchmark.make_sim(task)


class _Trace(NamedTuple):
    """Digests of an episode, and its start."""

    physics: str
    observations: str
    start: Start


def _trace(
    benchmark: Benchmark, sim: Sim, spec: EpisodeSpec, n_steps: int, keys: Sequence[str]
) -> _Trace:
    trace = _play(benchmark, sim, spec, n_steps, keys)
    sim.close()
    return trace


def _play(
    benchmark: Benchmark, sim: Sim, spec: EpisodeSpec, n_steps: int, keys: Sequence[str]
) -> _Trace:
    """Run an episode with random actions; return its digests and its start."""
    rng = np.random.default_rng(spec.seed)
    features = benchmark.features()
    physics_digest, observation_digest = hashlib.blake2b(), hashlib.blake2b()
    seed_global_rng(spec.seed)  # as an evaluation does
    sim.reset(spec)
    start = _measure_start(sim, features)
    for _ in range(n_steps):
        _check_observation(sim.observe(keys), features, keys, observation_digest)
        step = sim.step(rng.uniform(-1, 1, benchmark.action.size).astype(np.float32))
        assert np.isfinite(step.reward), "a reward is not finite"
        assert (step.success is not None) == benchmark.judged, (
            f"judged is {benchmark.judged}, and a step's success is {step.success}"
        )
        physics = sim.physics()
        assert physics.dtype == np.float64, "physics() must be float64"
        _check_coordinates(sim, physics)
        physics_digest.update(repr((float(step.reward), step.success, step.terminated)).encode())
        physics_digest.update(physics.tobytes())
        if step.terminated:
            break
    return _Trace(physics_digest.hexdigest(), observation_digest.hexdigest(), start)


def _measure_start(sim: Sim, features: dict[str, Feature]) -> Start:
    """Return the start of an episode; check the optional ``start_state``."""
    physics = sim.physics()
    if isinstance(sim, MeasuredSim):
        _check_numbers("start_state()", sim.start_state())
        assert len(sim.start_state()) <= MAX_START_VALUES, (
            f"start_state() gives more than {MAX_START_VALUES} numbers"
        )
        same = np.array_equal(sim.physics(), physics, equal_nan=True)
        assert same, "start_state() changes the episode: it must only read"
    return measured_start(sim, physics) or observed_start(sim.observe(start_keys(features)))


def _check_gap(one: Start, other: Start) -> None:
    """Check that two starts of a task are equal, or clearly different."""
    assert one.names == other.names, "start_state() names other numbers in another episode"
    apart = max(map(abs, np.subtract(one.values, other.values)), default=0.0)
    assert apart <= one.tolerance or apart >= _GAP * one.tolerance, (
        f"two starts are {apart:g} apart, neither equal (start_tolerance {one.tolerance:g}) nor "
        f"{_GAP} times that apart"
    )


def _check_coordinates(sim: Sim, physics: Array) -> None:
    """Check the optional ``coordinates``: finite numbers by name, and the world stays the same."""
    if not isinstance(sim, LocatedSim):
        return
    _check_numbers("coordinates()", sim.coordinates())
    same = np.array_equal(sim.physics(), physics, equal_nan=True)
    assert same, "coordinates() changes the episode: it must only read"


def _check_numbers(method: str, found: Mapping[Any, Any]) -> None:
    """Check that a method of a simulator gave finite numbers by name."""
    for name, value in found.items():
        assert isinstance(name, str), f"{method} names a number {name!r}, not by text"
        assert np.ndim(value) == 0, f"{method} must give one number for {name}"
        assert np.isfinite(value), f"{method} gives {value} for {name}"


def _check_observation(
    observation: Observation,
    features: dict[str, Feature],
    keys: Sequence[str],
    digest: hashlib.blake2b,
) -> None:
    assert set(observation) == set(keys), f"requested {list(keys)}, observed {list(observation)}"
    for key in keys:
        array, feature = observation[key], features[key]
        assert array.shape == feature.shape, f"{key} has shape {array.shape}, not {feature.shape}"
        assert array.dtype == np.dtype(feature.dtype), (
            f"{key} is {array.dtype}, not {feature.dtype}"
        )
        digest.update(np.ascontiguousarray(array).tobytes())


def _query(
    policy: Policy, benchmark: Benchmark, specs: list[EpisodeSpec], n_queries: int
) -> list[Array]:
    """Query the policy for all ``specs`` at once; return each episode's actions [T, A]."""
    states = [policy.new_episode(spec) for spec in specs]
    steps = [0] * len(specs)
    chunks_by_episode: list[list[Array]] = [[] for _ in specs]
    for number in range(n_queries):
        queries = [Query(*fields) for fields in zip(specs, steps, states, strict=True)]
        generated = [_random_observation(policy, benchmark, spec, number) for spec in specs]
        observations = {
            key: np.stack([window[key] for window in generated]) for key in policy.spec.inputs
        }
        chunks = checked_chunks(policy, Batch(queries, observations), benchmark.action)
        for row, chunk in enumerate(chunks):
            chunks_by_episode[row].append(chunk)
            steps[row] += len(chunk)
    for state in states:
        policy.end_episode(state)
    return [np.concatenate(chunks) for chunks in chunks_by_episode]


def _random_observation(
    policy: Policy, benchmark: Benchmark, spec: EpisodeSpec, query: int
) -> Observation:
    """Generate an observation window that depends only on the episode and the query."""
    rng = np.random.default_rng([spec.seed, spec.index, query])
    window: Observation = {}
    for key in policy.spec.inputs:
        feature = benchmark.features()[key]
        shape = (policy.spec.n_obs_steps, *feature.shape)
        if feature.kind in (FeatureKind.VISUAL, FeatureKind.FILM):
            window[key] = rng.integers(0, 256, shape, dtype=np.uint8)
        else:
            window[key] = rng.uniform(-1, 1, shape).astype(feature.dtype)
    return window
