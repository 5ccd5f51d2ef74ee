"""One vocabulary of what is seen and done: for benchmarks, datasets, policies, robots."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from proctor.types import Task

Array: TypeAlias = npt.NDArray[Any]


Observation: TypeAlias = dict[str, Array]
"""Feature key ("observation.image", "observation.state", ...) -> array, without a batch axis."""


IMAGE = "observation.image"


IMAGES = "observation.images."
"""The keys of a benchmark's only camera, and what those of several begin with."""


STATE = "observation.state"


ENVIRONMENT_STATE = "observation.environment_state"


FILM = "observation.film"


LANGUAGE_TOKENS = "observation.language.tokens"


LANGUAGE_MASK = "observation.language.attention_mask"
"""A task's words as a tokenizer numbers them, int64, and which of the numbers are words, bool: what
is filled up is none."""


ACTION = "action"


ACTION_TOKENS = "action.tokens"


ACTION_MASK = "action.token_mask"
"""Actions as a language model says them, int64, and which of the numbers say something, bool."""


REWARD = "next.reward"


SUCCESS = "next.success"


class FeatureKind(Enum):
    """What a feature means; the values are LeRobot's feature type names, but for the last."""

    STATE = "STATE"
    ENV = "ENV"
    """All there is to know of the world: privileged."""
    VISUAL = "VISUAL"
    ACTION = "ACTION"
    LANGUAGE = "LANGUAGE"
    REWARD = "REWARD"
    FILM = "FILM"
    """A picture for people: videos show it instead of the cameras, no policy is given it."""


@dataclass(frozen=True)
class Feature:
    """What one key holds. Images are uint8 [H, W, C]: channels come first inside networks only."""

    kind: FeatureKind
    shape: tuple[int, ...]
    dtype: str
    names: tuple[str, ...] | None = None
    """What each number is called, where somebody has said so."""

    @property
    def nbytes(self) -> int:
        """Bytes of one observation of this feature."""
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize


def observed_keys(features: Mapping[str, Feature]) -> tuple[str, ...]:
    """Return what an environment shows: cameras and state; without cameras, the world's state."""
    kinds = {FeatureKind.STATE, FeatureKind.VISUAL}
    if all(feature.kind is not FeatureKind.VISUAL for feature in features.values()):
        kinds.add(FeatureKind.ENV)
    return tuple(key for key, feature in features.items() if feature.kind in kinds)


@dataclass(frozen=True)
class ActionSpec:
    """The length of an action and, where the benchmark bounds it, its range.

    A bound is one number for all dimensions or one for each, infinite where there is none.
    """

    size: int
    low: float | tuple[float, ...] | None = None
    high: float | tuple[float, ...] | None = None
    clipped: bool = True
    """Whether the benchmark clips actions to the range; otherwise it plays them as they are."""

    @property
    def bounds(self) -> tuple[Array, Array]:
        """The range of every dimension, infinite where the benchmark has none."""
        low = -np.inf if self.low is None else self.low
        high = np.inf if self.high is None else self.high
        shape = (self.size,)
        return (
            np.broadcast_to(np.asarray(low, np.float32), shape),
            np.broadcast_to(np.asarray(high, np.float32), shape),
        )

    def count_out_of_range(self, actions: Array) -> int:
        """Count the actions (rows of ``actions``) that leave the range anywhere."""
        low, high = self.bounds
        return int(np.count_nonzero(((actions < low) | (actions > high)).any(axis=-1)))


Expert: TypeAlias = Callable[[Observation], Array]
"""A scripted policy for one task: the privileged observation of one moment -> one action."""


@dataclass(frozen=True)
class ScriptedExperts:
    """The scripted policies that come with an interface: one for each of its tasks."""

    inputs: tuple[str, ...]
    """The observation keys they look at."""
    tasks: tuple[Task, ...]
    make: Callable[[Task], Expert]
    """Raises UsageError for a task that has none."""


@dataclass(frozen=True)
class Interface:
    """What a benchmark, a dataset or a robot offers: all that a policy is made for."""

    name: str
    features: Mapping[str, Feature]
    """What can be observed, key by key."""
    action: ActionSpec
    fps: int | None = None
    """Actions a second; None where its tasks differ."""
    scripts: ScriptedExperts | None = None


class NormMode(Enum):
    """How a feature is normalised; the formulas are in processors.py."""

    MEAN_STD = "MEAN_STD"
    MIN_MAX = "MIN_MAX"
    QUANTILES = "QUANTILES"
    QUANTILE10 = "QUANTILE10"
    IDENTITY = "IDENTITY"


_AXES = ("height", "width", "channels")


def to_info(feature: Feature, stored_as: str = "video") -> dict[str, Any]:
    """Return the feature as a dataset's meta/info.json states it; images ``stored_as`` video or
    image."""
    if feature.kind in (FeatureKind.VISUAL, FeatureKind.FILM):
        return {"dtype": stored_as, "shape": list(feature.shape), "names": list(_AXES)}
    names = None if feature.names is None else list(feature.names)
    return {"dtype": feature.dtype, "shape": list(feature.shape), "names": names}


def from_info(key: str, entry: Mapping[str, Any]) -> Feature | None:
    """Return the feature that meta/info.json states under ``key``.

    None for what counts frames instead of describing them (timestamp, index ...). The third name of
    an image's axes tells whether its channels come last, as in LeRobot.
    """
    shape, names = tuple(entry["shape"]), entry.get("names")
    if entry["dtype"] in ("image", "video"):
        last = names is not None and str(names[2]).startswith("channel")
        kind = FeatureKind.FILM if key == FILM else FeatureKind.VISUAL
        return Feature(kind, shape if last else (*shape[1:], *shape[:1]), "uint8")
    kind_of_key = _kind(key, entry["dtype"])
    if kind_of_key is None:
        return None
    if isinstance(names, Mapping):  # as in older datasets: {"motors": [...]}
        names = [name for group in names.values() for name in group]
    return Feature(kind_of_key, shape, entry["dtype"], None if names is None else tuple(names))


def _kind(key: str, dtype: str) -> FeatureKind | None:
    if dtype == "language":
        return FeatureKind.LANGUAGE
    known = {ENVIRONMENT_STATE: FeatureKind.ENV, REWARD: FeatureKind.REWARD}
    if key in known:
        return known[key]
    if key.startswith("observation"):
        return FeatureKind.STATE
    return FeatureKind.ACTION if key.startswith(ACTION) else None
