"""Interface of perturbations: a dimension is defined once, and applied to one episode at a time."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from proctor.benchmarks.base import Benchmark, RobotControl
from proctor.benchmarks.mujoco.rendering import SceneEdit
from proctor.features import ActionSpec, Array, Feature, FeatureKind
from proctor.types import Task


@dataclass(frozen=True)
class PerturbedEpisode:
    """Everything that a perturbation of one episode depends on.

    Its random numbers depend on seed, dimension and level only. So an outcome is the same for any
    number of workers, any order, and with or without video.
    """

    dimension: str
    level: int
    seed: int
    fps: int
    action: ActionSpec
    control: RobotControl | None
    features: Mapping[str, Feature]
    hold: Array | None
    """Action that keeps the robot where the reset put it; None if the benchmark has none."""

    def rng(self, *parts: int | str) -> np.random.Generator:
        """Return the generator of one draw, named by ``parts`` (a step, a camera)."""
        numbers = [zlib.crc32(part.encode()) if isinstance(part, str) else part for part in parts]
        name = zlib.crc32(self.dimension.encode())
        return np.random.default_rng([self.seed, name, self.level, *numbers])


class ActivePerturbation:
    """A perturbation of one running episode; this one changes nothing."""

    def scene_edit(self) -> SceneEdit | None:
        """Return the function that changes what MuJoCo renders; None: nothing is changed."""
        return None

    def first_actions(self) -> Sequence[Array]:
        """Return actions that are executed before the episode starts."""
        return ()

    def change_action(self, action: Array, step: int) -> Array:
        """Return the action that the simulator executes at ``step``, from 0."""
        return action

    def change_observation(self, key: str, value: Array, step: int) -> Array:
        """Return what the policy observes after ``step`` steps."""
        return value


class Dimension:
    """One way to perturb an episode, at three levels."""

    name: ClassVar[str]
    levels: ClassVar[tuple[Any, ...]]
    """Strength of each level, as JSON values, in the units of ``unit``."""
    unit: ClassVar[str]
    noticed_in: ClassVar[frozenset[FeatureKind]] = frozenset()
    """Kinds of observations that it changes; a policy without any cannot notice it.
    Empty: it changes actions or the world."""

    def unsupported(self, benchmark: Benchmark) -> str | None:
        """Return why ``benchmark`` cannot be perturbed in this way; None: it can."""
        return None

    def instruction(self, task: Task, level: int) -> str:
        """Return the instruction of the perturbed task."""
        return task.instruction

    def noticed_keys(self, benchmark: Benchmark) -> frozenset[str]:
        """Return the observation keys that it changes."""
        return frozenset(
            key for key, found in benchmark.features().items() if found.kind in self.noticed_in
        )

    def begin(self, episode: PerturbedEpisode) -> ActivePerturbation:
        """Return the perturbation of one episode."""
        return ActivePerturbation()

    def strength(self, level: int) -> Any:
        """Return the strength of a level, from 1."""
        return self.levels[level - 1]
