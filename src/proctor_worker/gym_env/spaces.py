"""Convert the spaces of gymnasium, or of gym, to features and actions."""

import importlib
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Tuple,
    Type,
    Union,
)

if TYPE_CHECKING:
    import numpy as np
else:
    from proctor_worker.lazy_numpy import np

from proctor_worker.boundary import WrongValue, as_declared, as_numbers
from proctor_worker.records import Refused

IMAGE, IMAGES = "observation.image", "observation.images."
STATE, ENVIRONMENT_STATE = "observation.state", "observation.environment_state"
Array = Any
_OBSERVATION = "observation."
_NAMES = {
    "pixels": IMAGE,
    "agent_pos": STATE,
    "environment_state": ENVIRONMENT_STATE,
}


def _library(kind: Type[Any]) -> Any:
    """Return the module ``spaces`` of the library that defines a space's class."""
    if kind not in _libraries:
        _libraries[kind] = _find_library(kind)
    return _libraries[kind]


_libraries: Dict[Type[Any], Any] = {}


def _find_library(kind: Type[Any]) -> Any:
    for base in kind.__mro__:
        name = base.__module__.partition(".")[0]
        if name in ("gymnasium", "gym"):
            return importlib.import_module(name + ".spaces")
    raise Refused("%s is no space of gymnasium" % kind.__name__, code="env.unsupported-space")


def _is(space: Any, name: str) -> bool:
    """Whether a space is of the library's class ``name``, which an old library may lack."""
    kind = getattr(_library(type(space)), name, None)
    return kind is not None and isinstance(space, kind)


class ObservationEntry(NamedTuple):
    """A feature and its path in the environment's observation."""

    key: str
    kind: str
    shape: Tuple[int, ...]
    dtype: str
    path: Tuple[str, ...]
    space: Any

    def read(self, observation: Any) -> Array:
        """Return the feature's value.

        Raises:
            WrongValue: the observation is not what the space declares.
        """
        value = _at(observation, self.path)
        if not _is(self.space, "Box"):
            value = _flat(self.space, value, self.key)
        given = as_declared(value, self.dtype, self.key)
        if [n for n in given.shape if n != 1] != [n for n in self.shape if n != 1]:
            shapes = (self.key, given.shape, self.shape)
            raise WrongValue("%s has the shape %s, declared %s" % shapes)
        return np.array(given, dtype=self.dtype).reshape(self.shape)


def observation_entries(space: Any) -> List[ObservationEntry]:
    """Return the features of an observation space.

    Raises:
        Refused: a part of the space has no fixed size.
    """
    if not _is(space, "Dict"):
        key = IMAGE if _is_image(space) else STATE
        return [] if _is_text(space) else [_entry(key, (), space)]
    return [_entry(_key(path), path, part) for path, part in _parts(space) if not _is_text(part)]


def flatten_numbers(space: Any, observation: Any) -> Array:
    """Return all numbers of an observation, float64, without its texts."""
    if not has_text(space):
        flat = _flat(space, observation, "the observation")
        return as_numbers(flat, "the observation").astype(np.float64)
    parts = _parts(space) if _is(space, "Dict") else ()
    shown = [(path, part) for path, part in parts if not _is_text(part)]
    numbers = [flatten_numbers(part, _at(observation, path)) for path, part in shown]
    return np.concatenate([np.empty(0), *numbers])


def _flat(space: Any, value: Any, name: str) -> Any:
    """Return the numbers of a value of a space.

    Raises:
        WrongValue: it is no value of the space.
    """
    try:
        return _library(type(space)).flatten(space, value)
    except Exception as error:
        said = "%s is not what its space declares (%s: %s)" % (name, type(error).__name__, error)
        raise WrongValue(" ".join(said.split())) from error


def has_text(space: Any) -> bool:
    """Whether observations of this space contain text."""
    parts = _parts(space) if _is(space, "Dict") else [((), space)]
    return any(_is_text(part) for _, part in parts)


def collect_texts(space: Any, observation: Any) -> Tuple[str, ...]:
    """Return all texts of an observation."""
    if not _is(space, "Dict"):
        return (str(observation),) if _is_text(space) else ()
    texts = [path for path, part in _parts(space) if _is_text(part)]
    return tuple(str(_at(observation, path)) for path in texts)


def action_range(space: Any) -> Dict[str, Any]:
    """Return size, low and high of a policy's actions for this action space.

    Raises:
        Refused: the space is neither a Box nor Discrete.
    """
    if _is(space, "Discrete"):
        return {"size": int(space.n), "low": None, "high": None}
    if not _is(space, "Box"):
        raise Refused(
            f"its actions are {type(space).__name__}; only Box and Discrete are supported",
            code="env.unsupported-space",
        )
    size = int(np.prod(space.shape))
    return {"size": size, "low": _bound(space.low), "high": _bound(space.high)}


def action_converter(space: Any) -> Callable[[Array], Any]:
    """Return the function from a policy's action, an array, to the environment's action.

    Values are clipped to a Box; the action of Discrete is the argmax.
    """
    if _is(space, "Discrete"):
        start, int64 = getattr(space, "start", 0), np.int64
        return lambda action: start + int64(action.argmax())
    assert _is(space, "Box")
    shape, low, high, dtype = space.shape, space.low, space.high, space.dtype
    if np.issubdtype(dtype, np.integer):
        return lambda action: np.rint(action.reshape(shape).clip(low, high)).astype(dtype)
    return lambda action: action.reshape(shape).clip(low, high).astype(dtype)


def _bound(values: Array) -> Union[float, Tuple[float, ...]]:
    """Return the bound of every dimension, or one number if all are equal."""
    numbers = tuple(float(value) for value in values.ravel())
    return numbers[0] if len(set(numbers)) == 1 else numbers


def _at(observation: Any, path: Tuple[str, ...]) -> Any:
    """Return the value at ``path`` in an observation.

    Raises:
        WrongValue: it is not there.
    """
    for name in path:
        if not isinstance(observation, Mapping):
            raise WrongValue("the observation is a %s, no dict" % type(observation).__name__)
        if name not in observation:
            raise WrongValue("the observation lacks %r" % name)
        observation = observation[name]
    return observation


def _is_text(space: Any) -> bool:
    """Whether a space holds text: gymnasium's own, or one with a dtype of text (MiniGrid's)."""
    return _is(space, "Text") or (space.dtype is not None and space.dtype.kind in "US")


def _parts(space: Any, path: Tuple[str, ...] = ()) -> Iterator[Tuple[Tuple[str, ...], Any]]:
    for name, part in space.spaces.items():
        if _is(part, "Dict"):
            yield from _parts(part, (*path, name))
        else:
            yield (*path, name), part


def _key(path: Tuple[str, ...]) -> str:
    if len(path) == 1 and path[0] in _NAMES:
        return _NAMES[path[0]]
    if path[0] == "pixels":
        return IMAGES + ".".join(path[1:])
    joined = ".".join(path)
    return joined if joined.startswith(_OBSERVATION) else _OBSERVATION + joined


def _entry(key: str, path: Tuple[str, ...], space: Any) -> ObservationEntry:
    if _is_image(space):
        return ObservationEntry(key, "VISUAL", tuple(space.shape), "uint8", path, space)
    if not getattr(space, "is_np_flattenable", True):
        where = ".".join(path) or "the observation"
        raise Refused(
            f"{where} is a {type(space).__name__} space, which has no fixed size",
            code="env.unsupported-space",
        )
    whole = _is(space, "Box") and len(space.shape) > 0
    shape = tuple(space.shape) if whole else (int(_library(type(space)).flatdim(space)),)
    kind = "ENV" if key == ENVIRONMENT_STATE else "STATE"
    return ObservationEntry(key, kind, shape, "float32", path, space)


def _is_image(space: Any) -> bool:
    shape = space.shape
    return bool(space.dtype == np.uint8 and shape and len(shape) == 3 and shape[2] == 3)
