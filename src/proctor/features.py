"""Features: names, shapes and kinds of observations and actions, shared by all of Proctor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Callable, Dict

from proctor.types import Task

if TYPE_CHECKING:
    from typing import TypeAlias

    import numpy.typing as npt

    Array: TypeAlias = npt.NDArray[Any]
else:
    Array = Any  # configs import this module, and `--help` need not wait for numpy


Observation: TypeAlias = Dict[str, Array]
"""Feature key ("observation.image", "observation.state", ...) -> array, without a batch axis."""


IMAGE = "observation.image"


IMAGES = "observation.images."
"""``IMAGE`` is the key of a single camera; keys of several cameras begin with ``IMAGES``."""


STATE = "observation.state"


ENVIRONMENT_STATE = "observation.environment_state"


FILM = "observation.film"


LANGUAGE_TOKENS = "observation.language.tokens"


LANGUAGE_MASK = "observation.language.attention_mask"
"""Token ids of the instruction, int64, and the mask that is False for padding, bool."""


ACTION = "action"


ACTION_TOKENS = "action.tokens"


ACTION_MASK = "action.token_mask"
"""Token ids of actions, int64, and the mask that is False for padding, bool."""


REWARD = "next.reward"


SUCCESS = "next.success"


class FeatureKind(Enum):
    """The kind of a feature; the values are LeRobot's feature types, except FILM."""

    STATE = "STATE"
    ENV = "ENV"
    """The simulator's full state: privileged information."""
    VISUAL = "VISUAL"
    ACTION = "ACTION"
    LANGUAGE = "LANGUAGE"
    REWARD = "REWARD"
    FILM = "FILM"
    """An image for videos only, shown instead of the cameras; policies never receive it."""


@dataclass(frozen=True)
class Feature:
    """The shape and dtype of one key. Images are uint8 [H, W, C]; only networks use [C, H, W]."""

    kind: FeatureKind
    shape: tuple[int, ...]
    dtype: str
    names: tuple[str, ...] | None = None
    """Names of the dimensions, if known."""

    @property
    def nbytes(self) -> int:
        """Bytes of one observation of this feature."""
        import numpy as np

        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize


def observed_keys(features: Mapping[str, Feature]) -> tuple[str, ...]:
    """Return the keys that an environment shows by default: cameras and state.

    Without cameras the environment state is included.
    """
    kinds = {FeatureKind.STATE, FeatureKind.VISUAL}
    if all(feature.kind is not FeatureKind.VISUAL for feature in features.values()):
        kinds.add(FeatureKind.ENV)
    return tuple(key for key, feature in features.items() if feature.kind in kinds)


@dataclass(frozen=True)
class ActionSpec:
    """The size of an action and its range, if the benchmark has one.

    A bound is one number for all dimensions or one for each; infinite means unbounded.
    """

    size: int
    low: float | tuple[float, ...] | None = None
    high: float | tuple[float, ...] | None = None
    clipped: bool = True
    """Whether the benchmark clips actions to the range; otherwise it executes them unchanged."""
    names: tuple[str, ...] | None = None
    """Names of the dimensions, if known; recorded datasets have them."""

    @property
    def bounds(self) -> tuple[Array, Array]:
        """Lower and upper bounds of every dimension, infinite if the benchmark has none."""
        import numpy as np

        low = -np.inf if self.low is None else self.low
        high = np.inf if self.high is None else self.high
        shape = (self.size,)
        return (
            np.broadcast_to(np.asarray(low, np.float32), shape),
            np.broadcast_to(np.asarray(high, np.float32), shape),
        )

    def count_out_of_range(self, actions: Array) -> int:
        """Count the actions (rows of ``actions``) that leave the range in any dimension."""
        if self.low is None and self.high is None:
            return 0
        import numpy as np

        low, high = self.bounds
        return int(np.count_nonzero(((actions < low) | (actions > high)).any(axis=-1)))


Expert: TypeAlias = Callable[[Observation], Array]
"""A scripted policy for one task: privileged observation -> action."""


@dataclass(frozen=True)
class ScriptedExperts:
    """The scripted policies of a benchmark, one for each task."""

    inputs: tuple[str, ...]
    """Observation keys that they use."""
    tasks: tuple[Task, ...]
    make: Callable[[Task], Expert]
    """Creates the expert of a task; raises UsageError if the task has none."""


@dataclass(frozen=True)
class Interface:
    """Observations and actions of a benchmark, a dataset or a robot: a policy is built for it."""

    name: str
    features: Mapping[str, Feature]
    """Features that can be observed, by key."""
    action: ActionSpec
    fps: int | None = None
    """Actions per second; None if tasks differ."""
    scripts: ScriptedExperts | None = None
    image_size_flags: tuple[str, ...] = ()
    """Flags that set the images' height and width, or one for both; empty if there is none."""


class NormMode(Enum):
    """How a feature is normalised; the formulas are in processors.py."""

    MEAN_STD = "MEAN_STD"
    MIN_MAX = "MIN_MAX"
    QUANTILES = "QUANTILES"
    QUANTILE10 = "QUANTILE10"
    IDENTITY = "IDENTITY"


_AXES = ("height", "width", "channels")


def to_info(feature: Feature, stored_as: str = "video") -> dict[str, Any]:
    """Return the feature as an entry of a dataset's meta/info.json.

    Images are ``stored_as`` "video" or "image".
    """
    if feature.kind in (FeatureKind.VISUAL, FeatureKind.FILM):
        return {"dtype": stored_as, "shape": list(feature.shape), "names": list(_AXES)}
    names = None if feature.names is None else list(feature.names)
    return {"dtype": feature.dtype, "shape": list(feature.shape), "names": names}


def from_info(key: str, entry: Mapping[str, Any]) -> Feature | None:
    """Return the feature of an entry of meta/info.json.

    Return None for bookkeeping columns (timestamp, index, ...). As in LeRobot, the third axis name
    of an image says whether channels come last.
    """
    shape, names = tuple(entry["shape"]), entry.get("names")
    if entry["dtype"] in ("image", "video"):
        last = names is not None and str(names[2]).startswith("channel")
        kind = FeatureKind.FILM if key == FILM else FeatureKind.VISUAL
        return Feature(kind, shape if last else (*shape[1:], *shape[:1]), "uint8")
    kind_of_key = _kind(key, entry["dtype"])
    if kind_of_key is None:
        return None
    if isinstance(names, Mapping):  # older datasets: {"motors": [...]}
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
