"""Which pictures are changed at random while training, and how: LeRobot's settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from proctor.errors import UsageError

KINDS = {
    "ColorJitter": ("brightness", "contrast", "saturation", "hue"),
    "SharpnessJitter": ("sharpness",),
    "RandomAffine": ("degrees", "translate"),
}
"""LeRobot's names of transforms, and what each takes; of a ColorJitter, one at a time."""


def _defaults() -> dict[str, dict[str, Any]]:
    ranges = {"brightness": [0.8, 1.2], "contrast": [0.8, 1.2], "saturation": [0.5, 1.5]}
    ranges["hue"] = [-0.05, 0.05]
    six = {name: ("ColorJitter", {name: ends}) for name, ends in ranges.items()}
    six["sharpness"] = ("SharpnessJitter", {"sharpness": [0.5, 1.5]})
    six["affine"] = ("RandomAffine", {"degrees": [-5.0, 5.0], "translate": [0.05, 0.05]})
    return {
        name: {"weight": 1.0, "type": kind, "kwargs": told} for name, (kind, told) in six.items()
    }


@dataclass(frozen=True)
class Transform:
    """One way to change a picture."""

    name: str
    """brightness, contrast, saturation, hue, sharpness or affine."""
    weight: float
    low: float
    """The factor's range; of an affine transform, its angle's in degrees."""
    high: float
    translate: tuple[float, float] = (0.0, 0.0)
    """Of an affine transform: how far at most, in shares of width and height."""


@dataclass
class ImageTransformSettings:
    """Whether and how pictures are changed at random."""

    enable: bool = field(default=False, metadata={"help": "change pictures at random"})
    max_num_transforms: int = field(default=3, metadata={"help": "transforms of each picture"})
    random_order: bool = field(default=False, metadata={"help": "in any order, not as listed"})
    tfs: dict[str, Any] = field(
        default_factory=_defaults,
        metadata={"help": "what there is to choose from, as {name: {weight, type, kwargs}}"},
    )

    def transforms(self) -> list[Transform]:
        """Return what there is to choose from, in the order listed.

        Raises:
            UsageError: naming what is none.
        """
        return [_transform(name, told) for name, told in self.tfs.items()]

    def validate(self) -> None:
        """Refuse settings that make no sense.

        Raises:
            UsageError: naming the flag.
        """
        if not self.enable:
            return
        n = len(self.transforms())
        if not 1 <= self.max_num_transforms <= n:
            raise UsageError(
                f"--dataset.image_transforms.max_num_transforms is {self.max_num_transforms} "
                f"(choose 1-{n}, as many as there are)",
                code="flag.out-of-range",
            )


def _transform(name: str, told: Any) -> Transform:
    where = f"--dataset.image_transforms.tfs: {name}"
    if not isinstance(told, dict) or told.get("type") not in KINDS:
        raise UsageError(
            f"{where} has no type that we have ({', '.join(KINDS)})", code="flag.invalid-value"
        )
    given = dict(told.get("kwargs") or {})
    weight = told.get("weight", 1.0)
    if not isinstance(weight, int | float) or not 0 < weight < 1e9:
        raise UsageError(f"{where}: its weight must be above 0", code="flag.out-of-range")
    known = KINDS[told["type"]]
    if told["type"] == "RandomAffine":
        shift = _range(f"{where}: translate", given.pop("translate", [0.0, 0.0]), (0.0, 1.0))
        low, high = _range(f"{where}: degrees", given.pop("degrees", None), (-360.0, 360.0))
        what, translate = "affine", shift
    else:
        what = next(iter(given), "")
        if what not in known:
            raise UsageError(
                f"{where}: a {told['type']} takes one of {', '.join(known)}",
                code="flag.invalid-value",
            )
        ends = (-0.5, 0.5) if what == "hue" else (0.0, 100.0)
        (low, high), translate = _range(f"{where}: {what}", given.pop(what), ends), (0.0, 0.0)
    if given:
        raise UsageError(
            f"{where}: {next(iter(given))} is not among what we have ({known})",
            code="flag.invalid-value",
        )
    return Transform(what, float(weight), low, high, translate)


def _range(what: str, value: Any, ends: tuple[float, float]) -> tuple[float, float]:
    numbers = value if isinstance(value, list | tuple) else []
    if len(numbers) != 2 or not all(isinstance(n, int | float) for n in numbers):
        raise UsageError(f"{what} must be two numbers, got {value!r}", code="flag.invalid-value")
    low, high = float(numbers[0]), float(numbers[1])
    if not ends[0] <= low <= ends[1] or not ends[0] <= high <= ends[1]:
        raise UsageError(
            f"{what} must lie between {ends[0]:g} and {ends[1]:g}, got {value!r}",
            code="flag.out-of-range",
        )
    return low, high
