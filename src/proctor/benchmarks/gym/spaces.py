"""Convert gymnasium's spaces to features and actions (docs/reference/benchmarks/gym.md)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from proctor.errors import UsageError
from proctor.features import (
    ENVIRONMENT_STATE,
    IMAGE,
    IMAGES,
    STATE,
    ActionSpec,
    Array,
    Feature,
    FeatureKind,
)

_OBSERVATION = "observation."
_NAMES = {
    "pixels": IMAGE,
    "agent_pos": STATE,
    "environment_state": ENVIRONMENT_STATE,
}


@dataclass(frozen=True)
class ObservationEntry:
    """A feature and its path in the environment's observation."""

    key: str
    feature: Feature
    path: tuple[str, ...]
    space: Space[Any]

    def read(self, observation: Any) -> Array:
        """Return the feature's value."""
        value = _at(observation, self.path)
        if not isinstance(self.space, spaces.Box):
            value = spaces.flatten(self.space, value)
        return np.array(value, dtype=self.feature.dtype).reshape(self.feature.shape)


def observation_entries(space: Space[Any]) -> list[ObservationEntry]:
    """Return the features of an observation space.

    Raises:
        UsageError: a part of the space has no fixed size.
    """
    if not isinstance(space, spaces.Dict):
        key = IMAGE if _is_image(space) else STATE
        return [] if _is_text(space) else [_entry(key, (), space)]
    return [_entry(_key(path), path, part) for path, part in _parts(space) if not _is_text(part)]


def flatten_numbers(space: Space[Any], observation: Any) -> Array:
    """Return all numbers of an observation, float64, without its texts."""
    if not has_text(space):
        return np.asarray(spaces.flatten(space, observation), dtype=np.float64)
    parts = _parts(space) if isinstance(space, spaces.Dict) else ()
    shown = [(path, part) for path, part in parts if not _is_text(part)]
    numbers = [flatten_numbers(part, _at(observation, path)) for path, part in shown]
    return np.concatenate([np.empty(0), *numbers])


def has_text(space: Space[Any]) -> bool:
    """Whether observations of this space contain text."""
    parts = _parts(space) if isinstance(space, spaces.Dict) else [((), space)]
    return any(_is_text(part) for _, part in parts)


def collect_texts(space: Space[Any], observation: Any) -> tuple[str, ...]:
    """Return all texts of an observation."""
    if not isinstance(space, spaces.Dict):
        return (str(observation),) if _is_text(space) else ()
    texts = [path for path, part in _parts(space) if _is_text(part)]
    return tuple(str(_at(observation, path)) for path in texts)


def action_spec(space: Space[Any]) -> ActionSpec:
    """Return the spec of a policy's actions for this action space.

    Raises:
        UsageError: the space is neither a Box nor Discrete.
    """
    if isinstance(space, spaces.Discrete):
        return ActionSpec(int(space.n))
    if not isinstance(space, spaces.Box):
        raise UsageError(
            f"its actions are {type(space).__name__}; only Box and Discrete are supported",
            code="env.unsupported-space",
        )
    size = int(np.prod(space.shape))
    low, high = _bound(space.low), _bound(space.high)
    return ActionSpec(size, low, high)


def to_env_action(space: Space[Any], action: Array) -> Any:
    """Return the environment's action: values clipped to a Box, or the argmax for Discrete."""
    if isinstance(space, spaces.Discrete):
        return space.start + np.int64(np.argmax(action))
    assert isinstance(space, spaces.Box)
    clipped = np.clip(np.reshape(action, space.shape), space.low, space.high)
    if np.issubdtype(space.dtype, np.integer):
        clipped = np.rint(clipped)
    return clipped.astype(space.dtype)


def _bound(values: Array) -> float | tuple[float, ...]:
    """Return the bound of every dimension, or one number if all are equal."""
    numbers = tuple(float(value) for value in values.ravel())
    return numbers[0] if len(set(numbers)) == 1 else numbers


def _at(observation: Any, path: tuple[str, ...]) -> Any:
    """Return the value at ``path`` in an observation."""
    for name in path:
        observation = observation[name]
    return observation


def _is_text(space: Space[Any]) -> bool:
    """Whether a space holds text: gymnasium's own, or one with a dtype of text (MiniGrid's)."""
    return isinstance(space, spaces.Text) or (space.dtype is not None and space.dtype.kind in "US")


def _parts(space: spaces.Dict, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, part in space.spaces.items():
        if isinstance(part, spaces.Dict):
            yield from _parts(part, (*path, name))
        else:
            yield (*path, name), part


def _key(path: tuple[str, ...]) -> str:
    if len(path) == 1 and path[0] in _NAMES:
        return _NAMES[path[0]]
    if path[0] == "pixels":
        return IMAGES + ".".join(path[1:])
    return _OBSERVATION + ".".join(path).removeprefix(_OBSERVATION)


def _entry(key: str, path: tuple[str, ...], space: Space[Any]) -> ObservationEntry:
    if _is_image(space):
        return ObservationEntry(
            key, Feature(FeatureKind.VISUAL, space.shape or (), "uint8"), path, space
        )
    if not space.is_np_flattenable:
        where = ".".join(path) or "the observation"
        raise UsageError(
            f"{where} is a {type(space).__name__} space, which has no fixed size",
            code="env.unsupported-space",
        )
    whole = isinstance(space, spaces.Box) and len(space.shape) > 0
    shape = space.shape if whole and space.shape else (spaces.flatdim(space),)
    kind = FeatureKind.ENV if key == _NAMES["environment_state"] else FeatureKind.STATE
    return ObservationEntry(key, Feature(kind, shape, "float32"), path, space)


def _is_image(space: Space[Any]) -> bool:
    shape = space.shape
    return bool(space.dtype == np.uint8 and shape and len(shape) == 3 and shape[2] == 3)
