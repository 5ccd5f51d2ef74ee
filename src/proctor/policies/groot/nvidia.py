"""Folders in NVIDIA's own layout, as the base models are published. No torch here.

config.json               sizes of the network (model_type Gr00tN1d7), no LeRobot ``type``
*.safetensors             weights
processor_config.json     groups of states and actions and image sizes, by embodiment
statistics.json           statistics of the groups, by embodiment
embodiment_id.json        numbers of the embodiments
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from proctor.errors import UsageError, did_you_mean
from proctor.features import ACTION, IMAGES, STATE
from proctor.policies.groot.embodiments import EMBODIMENTS, LIBERO
from proctor.policies.groot.sizes import MODEL_TYPE
from proctor.policies.lerobot.location import read_json

_PROCESSOR, _STATISTICS, _NUMBERS = (
    "processor_config.json",
    "statistics.json",
    "embodiment_id.json",
)
_PLACEHOLDER = [3, 256, 256]
"""Shape of a camera image that the files do not state; the benchmark's replaces it."""


@dataclass(frozen=True)
class ProcessorSettings:
    """Settings of one embodiment's processors."""

    where: str
    modality: dict[str, Any] = field(default_factory=dict)
    raw_stats: dict[str, Any] = field(default_factory=dict)
    embodiments: dict[str, int] = field(default_factory=lambda: dict(EMBODIMENTS))
    valid_horizon: int | None = None
    video_horizon: int | None = None
    video_keys: list[str] = field(default_factory=list)
    max_action_horizon: int | None = None
    formalize_language: bool = True
    use_percentiles: bool = False
    use_relative_action: bool = False
    state_dropout_prob: float = 0.0
    clip_outliers: bool = True
    image_crop_size: list[int] | None = None
    image_target_size: list[int] | None = None
    shortest_image_edge: int | None = None
    crop_fraction: float | None = None
    use_albumentations: bool = False
    letter_box_transform: bool = False


@dataclass(frozen=True)
class NvidiaFolder:
    """The processor files of a folder."""

    path: Path
    processor: dict[str, Any]
    statistics: dict[str, Any]
    numbers: dict[str, int]

    @property
    def modalities(self) -> dict[str, Any]:
        """Modality configs by embodiment."""
        found = self.processor.get("modality_configs")
        return found if isinstance(found, dict) else {}

    @property
    def embodiments(self) -> list[str]:
        """Embodiments with statistics."""
        return [tag for tag in self.modalities if self.statistics.get(tag)]

    def horizon(self, embodiment: str) -> int | None:
        """Return the actions of a chunk of ``embodiment``; None: not stated."""
        from proctor.policies.groot.statistics import horizon_of

        return horizon_of(self._modality(embodiment), "action")

    def _modality(self, embodiment: str) -> dict[str, Any]:
        found = self.modalities.get(embodiment)
        return found if isinstance(found, dict) else {}

    def settings(self, embodiment: str) -> ProcessorSettings:
        """Return the settings of ``embodiment``; without statistics if there are none."""
        from proctor.policies.groot.statistics import horizon_of, modality_keys

        where, modality = str(self.path / _PROCESSOR), self._modality(embodiment)
        known = {f.name for f in fields(ProcessorSettings)} - {"where", "modality", "raw_stats"}
        stated = {k: v for k, v in self.processor.items() if k in known and v is not None}
        try:
            found = msgspec.convert({"where": where, **stated}, ProcessorSettings)
        except msgspec.ValidationError as error:
            raise UsageError(f"{where}: {error}", code="checkpoint.invalid-pipeline") from None
        stats = self.statistics.get(embodiment)
        return replace(
            found,
            modality=modality,
            raw_stats=stats if isinstance(stats, dict) and modality else {},
            embodiments=self.numbers or dict(EMBODIMENTS),
            valid_horizon=horizon_of(modality, "action"),
            video_horizon=horizon_of(modality, "video"),
            video_keys=modality_keys(modality, "video"),
        )


def read_folder(path: str | None) -> NvidiaFolder | None:
    """Return the processor files of a local folder in NVIDIA's layout; None: it is none."""
    if path is None:
        return None
    folder = Path(path).expanduser()
    try:
        if not (folder / "config.json").is_file():
            return None
        files = [folder / name for name in ("config.json", _PROCESSOR, _STATISTICS, _NUMBERS)]
        times = tuple(file.stat().st_mtime_ns if file.is_file() else 0 for file in files)
    except (OSError, ValueError):
        return None
    return _read(os.fspath(folder), times)


@lru_cache(maxsize=8)
def _read(path: str, times: tuple[int, ...]) -> NvidiaFolder | None:
    """Read the files; ``times`` makes a changed file be read again."""
    folder = Path(path)
    stated = read_json(folder / "config.json")
    if "type" in stated or stated.get("model_type") != MODEL_TYPE:
        return None
    found = [
        read_json(folder / name) if there else {}
        for name, there in zip((_PROCESSOR, _STATISTICS, _NUMBERS), times[1:], strict=True)
    ]
    processor = found[0].get("processor_kwargs")
    numbers = {k: v for k, v in found[2].items() if isinstance(v, int)}
    return NvidiaFolder(folder, processor if isinstance(processor, dict) else {}, found[1], numbers)


def from_nvidia(
    folder: Path, stated: Mapping[str, Any], overrides: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return LeRobot's config for a folder in NVIDIA's layout; None: it has another layout."""
    if stated.get("model_type") != MODEL_TYPE:
        return None
    from proctor.policies.groot.sizes import decode_sizes
    from proctor.policies.groot.statistics import group_size, modality_keys, stats_of

    files = read_folder(str(folder))
    assert files is not None, "its model_type is GR00T's"
    tag = _embodiment(files, overrides.get("embodiment_tag"))
    settings = files.settings(tag)
    sizes = decode_sizes(dict(stated), str(folder / "config.json"))
    widths = {
        kind: sum(
            group_size(stats_of(settings.raw_stats, kind, key))
            for key in modality_keys(settings.modality, kind)
        )
        for kind in ("state", "action")
    }
    cameras = [_camera(tag, key) for key in settings.video_keys]
    inputs = {camera: {"type": "VISUAL", "shape": _PLACEHOLDER} for camera in cameras}
    inputs[STATE] = {"type": "STATE", "shape": [widths["state"]]}
    horizon = settings.valid_horizon or sizes.action_horizon
    return {
        "type": "groot",
        "base_model_path": str(folder),
        "embodiment_tag": tag,
        "chunk_size": horizon,
        "n_action_steps": horizon,
        "max_state_dim": sizes.max_state_dim,
        "max_action_dim": sizes.max_action_dim,
        "input_features": inputs,
        "output_features": {ACTION: {"type": "ACTION", "shape": [widths["action"]]}},
    }


def _camera(embodiment: str, key: str) -> str:
    """Return the name of a view's camera; LIBERO's wrist camera is called image2."""
    return IMAGES + ("image2" if embodiment == LIBERO and key == "wrist_image" else key)


def _embodiment(files: NvidiaFolder, requested: Any) -> str:
    """Return the embodiment to use: the requested one, LIBERO's, or the only one."""
    known = files.embodiments
    if not known:
        raise UsageError(
            f"{files.path} has no statistics of any embodiment ({_PROCESSOR}, {_STATISTICS}): "
            "actions cannot be decoded; train it on a dataset with --policy.type=groot "
            f"--policy.base_model_path={files.path}",
            code="policy.missing-statistics",
        )
    if requested is None and (LIBERO in known or len(known) == 1):
        return LIBERO if LIBERO in known else known[0]
    if requested is None:
        raise UsageError(
            f"{files.path} is for several robots: choose one with --policy.embodiment_tag "
            f"({', '.join(known)})",
            code="policy.missing-embodiment",
        )
    if requested not in known:
        hint = did_you_mean(str(requested), known)
        raise UsageError(
            f"{files.path} has no statistics of the embodiment {requested!r} (choose "
            f"{', '.join(known)}){hint}; to train another: --policy.type=groot "
            f"--policy.base_model_path={files.path}",
            code="policy.unknown-embodiment",
        )
    return str(requested)
