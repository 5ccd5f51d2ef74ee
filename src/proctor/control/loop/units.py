"""Units of a dataset's channels, and the check that a robot has the same.

LeRobot's datasets do not say whether a joint is in degrees or in percent of its range. Recordings
of Proctor store the unit of every channel in meta/info.json::

    "action": {"dtype": "float32", "names": [...], "info": {"units": ["degrees", ...]}}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from proctor.errors import UsageError, strip_control_codes
from proctor.robots.base import Robot, Teleoperator, Unit

_UNITS = "units"


@dataclass(frozen=True)
class Channels:
    """Names and units of a vector feature, in order."""

    names: tuple[str, ...]
    units: tuple[str, ...] | None
    """None if the dataset does not say."""


def units_block(units: Sequence[Unit]) -> dict[str, Any]:
    """Return the ``info`` block of a feature with ``units``."""
    return {_UNITS: [unit.value for unit in units]}


def channels_of(entry: Mapping[str, Any]) -> Channels:
    """Return the channels of a feature's entry in meta/info.json."""
    names = entry.get("names") or ()
    if isinstance(names, Mapping):  # older datasets: {"motors": [...]}
        names = [name for group in names.values() for name in group]
    block = entry.get("info")
    units = block.get(_UNITS) if isinstance(block, Mapping) else None
    known = isinstance(units, Sequence) and len(units) == len(names)
    return Channels(tuple(map(str, names)), tuple(map(str, units)) if units and known else None)


def check_channels(
    key: str, entry: Mapping[str, Any], robot: Mapping[str, Unit], remedy: str
) -> bool:
    """Refuse a robot whose channels differ from those of a dataset's feature ``key``.

    Args:
        entry: the feature's entry in meta/info.json.
        robot: the robot's channels with their units.
        remedy: what to do, as a clause: "record into another folder".

    Returns:
        Whether the dataset states its units; without them only the names are compared.
    """
    said = channels_of(entry)
    if list(said.names) != list(robot):
        odd = [name for name in said.names if name not in robot] or [
            name for name in robot if name not in said.names
        ]
        what = f"has {_quoted(odd[0])}, in one of both only" if odd else "has another order"
        raise UsageError(
            f"the channels of the dataset's {key} differ from the robot's: it {what}; {remedy}",
            code="robot.channel-mismatch",
        )
    for name, unit in zip(said.names, said.units or (), strict=False):
        if unit != robot[name].value:
            raise UsageError(
                f"{key}: {_quoted(name)} is in {_quoted(unit)} in the dataset and in "
                f"{robot[name].value} on the robot; set the robot's units with "
                f"--robot.use_degrees, or {remedy}",
                code="robot.unit-mismatch",
            )
    return said.units is not None


def attach_teleoperator(teleop: Teleoperator, robot: Robot) -> None:
    """Attach a teleoperator to its robot, before either is connected.

    A keyboard has the channels of the robot that it is attached to.
    """
    teleop.attach(robot)
    offered = teleop.action_features
    for name, unit in robot.action_features.items():
        if name not in offered:
            raise UsageError(
                f"{teleop.name} has no channel {name}, which {robot.name} needs "
                f"(it has {', '.join(offered) or 'none'}); choose another --teleop.type",
                code="robot.channel-mismatch",
            )
        if offered[name] is not unit:
            raise UsageError(
                f"{name} is in {offered[name].value} on {teleop.name} and in {unit.value} on "
                f"{robot.name}; set the same --robot.use_degrees and --teleop.use_degrees",
                code="robot.unit-mismatch",
            )


def _quoted(text: str) -> str:
    return strip_control_codes(text, 60)
