"""All dimensions by name, and the check that a benchmark supports them."""

from __future__ import annotations

from collections.abc import Sequence

from proctor.benchmarks.base import Benchmark
from proctor.benchmarks.perturbations import ALL, DIMENSIONS
from proctor.benchmarks.perturbations.base import Dimension
from proctor.benchmarks.perturbations.control import ActionNoise, Delay, RobotPose, StateNoise
from proctor.benchmarks.perturbations.images import Blur, Noise, Occlusion
from proctor.benchmarks.perturbations.language import Language
from proctor.benchmarks.perturbations.scene import Camera, Light, Texture
from proctor.errors import UsageError

_CLASSES = (
    Camera,
    Light,
    Texture,
    Noise,
    Blur,
    Occlusion,
    StateNoise,
    ActionNoise,
    Delay,
    RobotPose,
    Language,
)
BY_NAME: dict[str, Dimension] = {made.name: made() for made in _CLASSES}
assert tuple(BY_NAME) == DIMENSIONS


def dimensions_of(names: Sequence[str], benchmark: Benchmark) -> list[Dimension]:
    """Return the named dimensions; of ``all``, those that the benchmark supports."""
    if any(task.perturbation is not None for task in benchmark.tasks()):
        raise UsageError(
            f"--perturb: the tasks of {benchmark.name} are perturbed already; leave it out",
            code="perturb.unsupported",
        )
    named = [BY_NAME[name] for name in dict.fromkeys(names) if name != ALL]
    for dimension in named:
        reason = dimension.unsupported(benchmark)
        if reason is not None:
            raise UsageError(
                f"--perturb: {dimension.name} is not for {benchmark.name}: {reason}",
                code="perturb.unsupported",
            )
    if ALL in names:
        named = [one for one in BY_NAME.values() if one.unsupported(benchmark) is None]
    return named
