"""Checks of the values that foreign code gives: environments, plug-ins, policies, other Pythons.

A value of the wrong type breaks the contract of whatever gave it, and ends the run. Whether numbers
are finite is checked where they are counted: a policy may have made a simulator diverge.
"""

import math
from typing import TYPE_CHECKING, Any, Dict, Mapping, Tuple

if TYPE_CHECKING:
    import numpy as np
else:
    from proctor_worker.lazy_numpy import np

_NUMBERS = "biuf"
"""Kinds of dtypes that are numbers: bool, int, unsigned, float."""
_LONGEST_VALUE = 60


class WrongValue(Exception):
    """A value that the contract does not allow; the text says what is wrong, not who gave it."""

    code = "plugin.contract-violation"


def as_flag(value: Any, name: str) -> bool:
    """Return a flag: a bool, or a number that is 0 or 1.

    Raises:
        WrongValue: it is anything else, such as NaN, "False" or 0.5.
    """
    if value is True or value is False:
        return value
    number = as_number(value, name)
    if number not in (0.0, 1.0):
        raise WrongValue("%s, not a bool, 0 or 1" % _shown(value, name))
    return number == 1.0


def as_number(value: Any, name: str) -> float:
    """Return one number, possibly not finite.

    Raises:
        WrongValue: it is text, an object, complex, or not one number.
    """
    if type(value) is float:
        return value
    array = as_numbers(value, name)
    if array.size != 1:
        raise WrongValue("%s, not one number" % _shown(value, name))
    return float(array.item())


def as_numbers(value: Any, name: str) -> "np.ndarray[Any, Any]":
    """Return an array of numbers.

    Raises:
        WrongValue: it has texts, objects or complex numbers, or lists of different lengths.
    """
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):
        raise WrongValue("%s, not numbers" % _shown(value, name)) from None
    if array.dtype.kind not in _NUMBERS:
        raise WrongValue("%s, not numbers" % _shown(value, name))
    return array


def as_tuple(made: Any, what: str) -> Tuple[Any, ...]:
    """Return what a method made: as many values as ``what`` names, "METHOD: NAME, NAME"; info last.

    Raises:
        WrongValue: there are more or fewer values, or info is no mapping.
    """
    method, _, names = what.partition(": ")
    values = tuple(made) if isinstance(made, (tuple, list)) else ()
    if len(values) != names.count(",") + 1:
        shown = "%d values" % len(values) if values else "a " + type(made).__name__
        raise WrongValue("%s returned %s, not %s" % (method, shown, names))
    if not isinstance(values[-1], Mapping):
        raise WrongValue("%s returned a %s as info" % (method, type(values[-1]).__name__))
    return values


def numbers_by_name(found: Any) -> Dict[str, float]:
    """Return numbers by name.

    Raises:
        WrongValue: it is no mapping, or a value is no number.
    """
    if type(found) is not dict and not isinstance(found, Mapping):  # the latter is slow
        raise WrongValue("a %s is given for numbers by name" % type(found).__name__)
    return {str(name): as_number(value, str(name)) for name, value in found.items()}


def as_declared(value: Any, dtype: str, name: str) -> "np.ndarray[Any, Any]":
    """Return an array that ``dtype`` can hold; a declared integer is never made from a float.

    The array keeps its own dtype if the declared one holds all of its values.

    Raises:
        WrongValue: it is no array of numbers, or ``dtype`` cannot hold a value.
    """
    array = as_numbers(value, name)
    declared = np.dtype(dtype)
    if array.dtype == declared or declared.kind == "f":
        return array
    if array.dtype.kind == "f":
        raise WrongValue("%s, declared %s" % (_shown(array, name), declared))
    low, high = (0, 1) if declared.kind == "b" else _limits(declared)
    if array.size and not (low <= array.min() and array.max() <= high):
        shown = "%s from %s to %s" % (_shown(array, name), array.min(), array.max())
        raise WrongValue("%s, declared %s" % (shown, declared))
    return array.astype(declared)


def is_finite(array: "np.ndarray[Any, Any]", dtype: str) -> bool:
    """Return whether all numbers are finite, also in the declared ``dtype``."""
    if array.dtype.kind != "f":
        return True
    declared = np.dtype(dtype)
    if declared.kind != "f" or array.dtype.itemsize <= declared.itemsize:
        return bool(np.isfinite(array).all())
    return not array.size or bool(np.abs(array).max() <= np.finfo(declared).max)  # false for NaN


LARGEST_REWARD = 3.4028234663852886e38
"""Largest number of a float32, in which rewards are stored: sums of them are finite."""


def is_reward(number: float) -> bool:
    """Return whether a reward or a score is finite where it is stored."""
    return math.fabs(number) <= LARGEST_REWARD


def _limits(declared: "np.dtype[Any]") -> Tuple[int, int]:
    limits = np.iinfo(declared)
    return int(limits.min), int(limits.max)


def _shown(value: Any, name: str) -> str:
    """Return "NAME is VALUE (TYPE)" in few characters; an array is shown by dtype and shape."""
    if isinstance(value, np.ndarray) and value.ndim:
        return "%s is an array of %s of shape %s" % (name, value.dtype, value.shape)
    text = " ".join(repr(value).split())
    if len(text) > _LONGEST_VALUE:
        text = text[:_LONGEST_VALUE] + "..."
    return "%s is %s (%s)" % (name, text, type(value).__name__)
