"""Adds the perturbed tasks of --perturb to a benchmark, and checks that the policy notices them."""

from __future__ import annotations

from collections.abc import Callable

from proctor.benchmarks.base import Benchmark
from proctor.benchmarks.perturbations import ALL
from proctor.benchmarks.perturbations.base import Dimension
from proctor.benchmarks.perturbations.benchmark import PerturbedBenchmark, PerturbedMaker
from proctor.benchmarks.perturbations.dimensions import dimensions_of
from proctor.benchmarks.perturbations.language import Language
from proctor.benchmarks.perturbations.selection import parse_dimensions
from proctor.config.base import RunConfig
from proctor.config.evaluation import EvalConfig
from proctor.errors import UsageError
from proctor.policies.base import Placement, PolicySpec

MadeBenchmark = tuple[Callable[[], Benchmark], Benchmark]
"""A benchmark's factory for workers, and the benchmark."""


def with_perturbations(
    config: RunConfig, make_benchmark: Callable[[], Benchmark], benchmark: Benchmark
) -> MadeBenchmark:
    """Return the benchmark with the tasks of --perturb; unchanged without that flag."""
    names = _names(config)
    if not names:
        return make_benchmark, benchmark
    assert isinstance(config, EvalConfig)
    dimensions = dimensions_of(names, benchmark)
    levels = tuple(config.perturb_levels)
    maker = PerturbedMaker(make_benchmark, tuple(one.name for one in dimensions), levels)
    return maker, PerturbedBenchmark(benchmark, dimensions, levels)


def without_unnoticed(config: RunConfig, made: MadeBenchmark, policy: PolicySpec) -> MadeBenchmark:
    """Return the benchmark without dimensions of --perturb=all that ``policy`` cannot notice."""
    maker, benchmark = made
    if not isinstance(maker, PerturbedMaker) or not isinstance(benchmark, PerturbedBenchmark):
        return made
    reasons = {
        dimension.name: reason
        for dimension in benchmark.dimensions
        if (reason := _unnoticed(dimension, benchmark, policy)) is not None
    }
    noticed = tuple(name for name in maker.names if name not in reasons)
    if reasons and (_names(config) != (ALL,) or not noticed):
        name, reason = next(iter(reasons.items()))
        raise UsageError(
            f"--perturb: {name} cannot change an episode of policy {policy.name!r}: {reason}; "
            "leave it out",
            code="perturb.unnoticed",
        )
    made_again = PerturbedMaker(maker.make, noticed, maker.levels)
    return (made_again, made_again()) if reasons else made


def _names(config: RunConfig) -> tuple[str, ...]:
    return parse_dimensions(config.perturb) if isinstance(config, EvalConfig) else ()


def _unnoticed(dimension: Dimension, benchmark: Benchmark, policy: PolicySpec) -> str | None:
    """Return why a policy cannot notice a dimension; None: it can, or may."""
    if dimension.noticed_in and not dimension.noticed_keys(benchmark) & set(policy.inputs):
        return f"it observes {', '.join(policy.inputs) or 'nothing'}"
    if not isinstance(dimension, Language):
        return None
    if policy.tasks_with_instruction:
        return "--policy.instructions replaces the instruction"
    reads = policy.language_conditioned
    known = policy.device_type is not None or policy.placement is Placement.WORKER
    return "it reads no instruction" if known and not reads else None
