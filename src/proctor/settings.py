"""Settings of config dataclasses: default, help text, marks, bounds and choices in one call.

    batch_size: int = setting(8, "samples per batch, in every process", least=1, most=10**6)
    task_ids: list[int] | None = setting(None, "ids of the tasks (default: all tasks)", least=0)

A text ends with the meaning of its default, where the default itself does not say it: None, empty,
or 0 for "no limit". It is written as the help prints it: ``(default: all tasks)``, or
``(required without dataset.root)``.

``check_settings`` refuses values outside of the bounds. Building a config and checking it are two
steps: checks change nothing.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from proctor.errors import UsageError, did_you_mean

_BOUNDS = "bounds"


@dataclass(frozen=True)
class Bounds:
    """The values that a setting accepts; of a list, those of each item. None is always accepted."""

    least: float | None = None
    most: float | None = None
    above: float | None = None
    """Open lower end: ``above=0`` refuses 0."""
    below: float | None = None
    choices: Collection[str] | None = None

    def check(self, name: str, value: Any) -> None:
        """Refuse a value that is not accepted; ``name`` is its flag without dashes."""
        for item in value if isinstance(value, (list, tuple)) else [value]:
            if item is None:
                continue
            if self.choices is not None and item not in self.choices:
                raise UsageError(
                    f"--{name}: there is no {item!r}{did_you_mean(str(item), self.choices)} "
                    f"(choose {', '.join(self.choices)})",
                    code="flag.invalid-value",
                )
            if self.choices is None and not self._contains(item):
                raise UsageError(
                    f"--{name} must be {self._range(item)}, got {_number(item)}",
                    code="flag.out-of-range",
                )

    def _contains(self, number: float) -> bool:
        """Return whether a number lies inside; NaN does not."""
        return (
            (self.least is None or number >= self.least)
            and (self.most is None or number <= self.most)
            and (self.above is None or number > self.above)
            and (self.below is None or number < self.below)
        )

    def _range(self, number: float) -> str:
        """Return the bound that a number breaks, or of a closed range of floats both."""
        if self.above is not None and not number > self.above:
            return f"above {_number(self.above)}"
        if self.least is None or self.above is not None or isinstance(number, int):
            if self.least is not None and number < self.least:
                return f"at least {_number(self.least)}"
            return f"at most {_number(self.most)}" if self.below is None else f"below {self.below}"
        if self.below is not None:
            return f"from {_number(self.least)} to below {_number(self.below)}"
        if self.most is not None:
            return f"from {_number(self.least)} to {_number(self.most)}"
        return f"at least {_number(self.least)}"


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def setting(
    default: Any,
    text: str = "",
    *marks: Mapping[str, Any],
    least: float | None = None,
    most: float | None = None,
    above: float | None = None,
    below: float | None = None,
    choices: Collection[str] | None = None,
    **more: Any,
) -> Any:
    """Declare a field of a config with the metadata of its flag.

    Args:
        default: The default. Lists and maps are copied.
        text: What the flag does, with its unit, and the meaning of its default. Without a text,
            the one of a base class.
        marks: Metadata of ``proctor.fingerprint``, such as ``PRESENTATION``.
        least: Smallest value that is accepted.
        most: Largest value that is accepted.
        above: Lower end, which is not accepted itself.
        below: Upper end, which is not accepted itself.
        choices: The words that are accepted.
        more: Metadata by name, which ``config/flags/command`` lists, such as ``placeholder``.
    """
    metadata = {**_help(text), **more}
    for mark in marks:
        metadata.update(mark)
    bounds = Bounds(least, most, above, below, choices)
    if bounds != Bounds():
        metadata[_BOUNDS] = bounds
    return declared(default, metadata)


def declared(default: Any, metadata: Mapping[str, Any]) -> Any:
    """Declare a field of a dataclass; a list or map as default is copied for each object."""
    if isinstance(default, (list, dict)):
        return field(default_factory=lambda: deepcopy(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def _help(text: str) -> dict[str, str]:
    for start in (" (default: ", " (required"):
        said, found, meaning = text.partition(start)
        if found:
            prefix = "required" if start == " (required" else ""
            return {"help": said, "default_help": prefix + meaning[:-1]}
    return {"help": text} if text else {}


def check_settings(config: Any, prefix: str = "") -> None:
    """Refuse settings of a config, and of the sections in it, that are outside of their bounds.

    A field that a subclass declares again keeps the bounds of its base class.
    """
    for known in fields(config):
        name = f"{prefix}{known.metadata.get('flag', known.name)}"
        value = getattr(config, known.name, None)
        if is_dataclass(value) and not isinstance(value, type):
            check_settings(value, f"{name}.")
        elif (bounds := _bounds_of(type(config), known.name)) is not None:
            bounds.check(name, value)


def _bounds_of(owner: type[Any], field_name: str) -> Bounds | None:
    known = (getattr(base, "__dataclass_fields__", {}).get(field_name) for base in owner.__mro__)
    found = (one.metadata[_BOUNDS] for one in known if one is not None and _BOUNDS in one.metadata)
    return next(found, None)


def require_finite(values: Mapping[str, Any]) -> None:
    """Refuse infinite numbers and NaN, which no file can hold; ``values`` are by dotted name."""
    for name, value in values.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise UsageError(
                f"--{name} must be a finite number, got {value:g}", code="flag.out-of-range"
            )
