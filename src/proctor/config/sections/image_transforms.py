"""Image augmentation settings, as in LeRobot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from proctor.errors import UsageError
from proctor.settings import setting

KINDS = {
    "ColorJitter": ("brightness", "contrast", "saturation", "hue"),
    "SharpnessJitter": ("sharpness",),
    "RandomAffine": ("degrees", "translate"),
}
"""LeRobot's transforms and their parameters; a ColorJitter takes one of its four."""


def _defaults() -> dict[str, dict[str, Any]]:
    ranges = {"brightness": [0.8, 1.2], "contrast": [0.8, 1.2], "saturation": [0.5, 1.5]}
    ranges["hue"] = [-0.05, 0.05]
    six = {name: ("ColorJitter", {name: ends}) for name, ends in ranges.items()}
    six["sharpness"] = ("SharpnessJitter", {"sharpness": [0.5, 1.5]})
    six["affine"] = ("RandomAffine", {"degrees": [-5.0, 5.0], "translate": [0.05, 0.05]})
    return {
        name: {"weight": 1.0, "type": kind, "kwargs": settings}
        for name, (kind, settings) in six.items()
    }


@dataclass(frozen=True)
class Transform:
    """One image transform."""

    name: str
    """brightness, contrast, saturation, hue, sharpness or affine."""
    weight: float
    low: float
    """Lower end of the factor; of an affine transform, of the angle in degrees."""
    high: float
    translate: tuple[float, float] = (0.0, 0.0)
    """Largest translation of an affine transform, as shares of width and height."""


@dataclass
class ImageTransformSettings:
    """Image augmentation (--dataset.image_transforms.*)."""

    help_group: ClassVar[str] = "Image augmentation"

    enable: bool = setting(False, "enable image augmentation")
    max_num_transforms: int = setting(3, "maximum number of transforms applied to one image")
    random_order: bool = setting(
        False, "apply the transforms in random order instead of the listed order"
    )
    tfs: dict[str, Any] = setting(
        _defaults(),
        "transforms to sample from, as {name: {weight: 1, type: ColorJitter, kwargs: {hue: "
        "[-0.05,0.05]}}} (default: LeRobot's six)",
    )

    def transforms(self) -> list[Transform]:
        """Return the available transforms in the listed order."""
        return [_transform(name, settings) for name, settings in self.tfs.items()]

    def validate(self) -> None:
        """Refuse invalid settings."""
        if not self.enable:
            return
        n = len(self.transforms())
        if not 1 <= self.max_num_transforms <= n:
            raise UsageError(
                f"--dataset.image_transforms.max_num_transforms is {self.max_num_transforms} "
                f"(choose 1-{n}, as many as there are)",
                code="flag.out-of-range",
            )


def _transform(name: str, settings: Any) -> Transform:
    where = f"--dataset.image_transforms.tfs: {name}"
    if not isinstance(settings, dict) or settings.get("type") not in KINDS:
        raise UsageError(
            f"{where} has no known type (choose {', '.join(KINDS)})", code="flag.invalid-value"
        )
    given = dict(settings.get("kwargs") or {})
    weight = settings.get("weight", 1.0)
    if not isinstance(weight, int | float) or not 0 < weight < 1e9:
        raise UsageError(f"{where}: its weight must be above 0", code="flag.out-of-range")
    known = KINDS[settings["type"]]
    if settings["type"] == "RandomAffine":
        shift = _range(f"{where}: translate", given.pop("translate", [0.0, 0.0]), (0.0, 1.0))
        low, high = _range(f"{where}: degrees", given.pop("degrees", None), (-360.0, 360.0))
        what, translate = "affine", shift
    else:
        what = next(iter(given), "")
        if what not in known:
            raise UsageError(
                f"{where}: a {settings['type']} takes one of {', '.join(known)}",
                code="flag.invalid-value",
            )
        ends = (-0.5, 0.5) if what == "hue" else (0.0, 100.0)
        (low, high), translate = _range(f"{where}: {what}", given.pop(what), ends), (0.0, 0.0)
    if given:
        raise UsageError(
            f"{where}: {next(iter(given))} is not a parameter of it (choose {known})",
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
