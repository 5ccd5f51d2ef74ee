"""Functions that Meta-World's tasks and experts call in every step, with less overhead.

They return the same results to the bit: the same floating-point operations in the same order, on
values of the same types. Arguments of other types go to the original functions.
"""

from __future__ import annotations

import importlib.util
import math
from types import ModuleType
from typing import Any

import numpy as np
from metaworld.policies import action as action_module
from metaworld.policies import policy as policy_module
from metaworld.utils import reward_utils
from scipy.spatial.transform import Rotation

from proctor.features import Array

_DOUBLE = np.dtype(np.float64)
_DOUBLES = (float, np.float64)
_NUMBERS = (int, float, np.float64)
_AT_MARGIN = 0.1
"""Meta-World's default of ``value_at_margin``, which all its tasks use."""
_LONG_TAIL_SCALE = np.sqrt(1 / _AT_MARGIN - 1)
_GAUSSIAN_SCALE = np.sqrt(-2 * np.log(_AT_MARGIN))


def tolerance(
    x: Any,
    bounds: tuple[Any, Any] = (0.0, 0.0),
    margin: Any = 0.0,
    sigmoid: str = "gaussian",
    value_at_margin: float = _AT_MARGIN,
) -> Any:
    """Return 1 inside the bounds and less outside, as ``reward_utils.tolerance``."""
    lower, upper = bounds
    if (
        type(x) not in _DOUBLES
        or type(lower) not in _NUMBERS
        or type(upper) not in _NUMBERS
        or value_at_margin != _AT_MARGIN
        or sigmoid not in ("long_tail", "gaussian")
        or lower > upper
        or margin < 0
    ):
        return reward_utils.tolerance(x, bounds, margin, sigmoid, value_at_margin)  # may raise
    x = float(x)
    if lower <= x <= upper:
        return 1.0
    if margin == 0:
        return 0.0
    # NumPy's power may round otherwise than Python's.
    distance = np.float64((lower - x if x < lower else x - upper) / float(margin))
    if sigmoid == "long_tail":
        return float(1 / ((distance * _LONG_TAIL_SCALE) ** 2 + 1))
    return float(np.exp(-0.5 * (distance * _GAUSSIAN_SCALE) ** 2))


def norm(x: Any, ord: Any = None, **options: Any) -> Any:
    """Return the Euclidean norm of a vector, as ``numpy.linalg.norm``."""
    if (ord is None or ord == 2) and not options:
        # BLAS may add the squares of a vector with gaps in another order.
        if type(x) is np.ndarray and x.dtype is _DOUBLE and x.strides == (8,):
            return np.float64(math.sqrt(x.dot(x)))
        if type(x) is np.float64 and ord is None:
            return np.float64(math.sqrt(x * x))
    return np.linalg.norm(x, ord, **options)


def clip(x: Any, low: Any = None, high: Any = None, **options: Any) -> Any:
    """Return a number limited to a range, as ``numpy.clip``."""
    is_number = type(x) in (np.float32, np.float64)
    if is_number and type(low) in (int, float) and type(high) in (int, float) and not options:
        return type(x)(min(max(x, low), high))
    return np.clip(x, low, high, **options)


def hstack(arrays: Any) -> Array:
    """Return vectors joined, as ``numpy.hstack``."""
    if all(type(array) is np.ndarray and array.ndim == 1 for array in arrays):
        return np.concatenate(arrays)
    return np.hstack(arrays)


class FastRotation:
    """Scipy's ``Rotation`` for the quaternion of one of MuJoCo's rotation matrices."""

    def __init__(self, quaternion: tuple[float, ...]) -> None:
        self._quaternion = quaternion

    @classmethod
    def from_matrix(cls, matrix: Array) -> FastRotation:
        """Return the rotation of an orthogonal matrix [3, 3], by scipy's choice of formula.

        Scipy checks that the matrix is orthogonal, which takes most of its time.
        """
        (xx, xy, xz), (yx, yy, yz), (zx, zy, zz) = matrix.tolist()
        trace = xx + yy + zz
        if trace > xx and trace > yy and trace > zz:
            x, y, z, w = zy - yz, xz - zx, yx - xy, 1 + trace
        elif xx >= yy and xx >= zz:
            x, y, z, w = 1 - trace + 2 * xx, yx + xy, zx + xz, zy - yz
        elif yy >= zz:
            x, y, z, w = xy + yx, 1 - trace + 2 * yy, zy + yz, xz - zx
        else:
            x, y, z, w = xz + zx, yz + zy, 1 - trace + 2 * zz, yx - xy
        length = math.sqrt(x * x + y * y + z * z + w * w)
        return cls((x / length, y / length, z / length, w / length))

    def as_quat(self) -> Array:
        """Return x, y, z, w."""
        return np.array(self._quaternion)


def move(from_xyz: Array, to_xyz: Array, p: float) -> Array:
    """Return the action towards a position, as ``policy.move`` without its warning."""
    return p * (to_xyz - from_xyz)


class FastAction:
    """An action by names, as ``metaworld.policies.action.Action`` of Meta-World's experts.

    Each of them names 3 numbers of the hand by an array of indices, and the gripper's by its index.
    """

    def __init__(self, structure: dict[str, Any]) -> None:
        self._structure = structure
        self.array = np.zeros(4, dtype=np.float32)

    def __setitem__(self, key: str, value: Any) -> None:
        index = self._structure[key]
        self.array[index if type(index) is int else slice(3)] = value


def _changed(module: ModuleType, **changes: Any) -> ModuleType:
    """Return a copy of a module's namespace with some names replaced."""
    copy = ModuleType(module.__name__)
    vars(copy).update(vars(module) | changes)
    return copy


_NUMPY = _changed(np, linalg=_changed(np.linalg, norm=norm), clip=clip, hstack=hstack)
_REWARD_UTILS = _changed(reward_utils, tolerance=tolerance)
_FAST: dict[int, Any] = {
    id(np): _NUMPY,
    id(reward_utils): _REWARD_UTILS,
    id(reward_utils.tolerance): tolerance,
    id(Rotation): FastRotation,
    id(policy_module.move): move,
    id(action_module.Action): FastAction,
}


def with_fast_functions(original: type) -> type:
    """Return a class of Meta-World from a copy of its module that calls the functions above.

    The installed package stays as it is.
    """
    spec = importlib.util.find_spec(original.__module__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    namespace = vars(module)
    namespace.update(
        {name: _FAST[id(value)] for name, value in namespace.items() if id(value) in _FAST}
    )
    copy: type = namespace[original.__name__]
    return copy
