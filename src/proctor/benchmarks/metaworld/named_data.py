"""MuJoCo's data with its named elements looked up once."""

from __future__ import annotations

from typing import Any

import mujoco


class NamedArrays:
    """Arrays of one named element. An assignment to one writes into MuJoCo's memory.

    It does not refer to its MjData, so an MjData that keeps it is freed without garbage collection.
    """

    __slots__ = ("id", "qpos", "xmat", "xpos", "xquat")

    def __init__(self, element: Any) -> None:
        for name in self.__slots__:
            if hasattr(element, name):
                object.__setattr__(self, name, getattr(element, name))

    def __setattr__(self, name: str, value: Any) -> None:
        getattr(self, name)[:] = value


class NamedData(mujoco.MjData):  # type: ignore[misc]
    """An MjData whose bodies, sites, geoms and joints are looked up by name once.

    MuJoCo makes new views at each access. A reward function spends more time on that than on its
    arithmetic.
    """

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        counts = {
            "body": model.nbody,
            "site": model.nsite,
            "geom": model.ngeom,
            "joint": model.njnt,
        }
        for kind, count in counts.items():
            elements = map(getattr(self, kind), range(count))
            by_name = {element.name: NamedArrays(element) for element in elements}
            setattr(self, kind, by_name.__getitem__)
        self.controls = self.ctrl
        self.mocap_positions = self.mocap_pos
        self.mocap_quaternions = self.mocap_quat
