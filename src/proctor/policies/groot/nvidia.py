"""Folders in NVIDIA's own layout, as the base models are published. No torch here. N1.7's have:

config.json               sizes of the network (model_type Gr00tN1d7), no LeRobot ``type``
*.safetensors             weights
processor_config.json     groups of states and actions and image sizes, by embodiment
statistics.json           statistics of the groups, by embodiment
embodiment_id.json        numbers of the embodiments

N1.5's have the model_type gr00t_n1_5 and experiment_cfg/metadata.json: groups of states and actions
and their statistics, by embodiment. States and actions are scaled to -1 to 1 by their minimum and
maximum, as NVIDIA's configurations for arms do. Groups with rotations need a change of
representation that the files do not state. LeRobot 0.5.1's config of N1.5 is read here too.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from proctor.errors import UsageError, did_you_mean
from proctor.features import ACTION, IMAGES, STATE
from proctor.policies.groot.embodiments import EMBODIMENTS, LIBERO
from proctor.policies.groot.network.sizes import (
    MODEL_TYPE,
    N15_MODEL_TYPE,
    GrootSizes,
    decode_n15_sizes,
    decode_sizes,
)
from proctor.policies.lerobot.checkpoint.location import read_json

_PROCESSOR, _STATISTICS, _NUMBERS = (
    "processor_config.json",
    "statistics.json",
    "embodiment_id.json",
)
METADATA = "experiment_cfg/metadata.json"


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
        from proctor.policies.groot.steps.statistics import horizon_of

        return horizon_of(self._modality(embodiment), "action")

    def _modality(self, embodiment: str) -> dict[str, Any]:
        found = self.modalities.get(embodiment)
        return found if isinstance(found, dict) else {}

    def settings(self, embodiment: str) -> ProcessorSettings:
        """Return the settings of ``embodiment``; without statistics if there are none."""
        from proctor.policies.groot.steps.statistics import horizon_of, modality_keys

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
    from proctor.policies.groot.steps.statistics import group_size, modality_keys, stats_of

    files = read_folder(str(folder))
    assert files is not None, "its model_type is GR00T's"
    files_read = f"{_PROCESSOR}, {_STATISTICS}"
    usual = LIBERO if LIBERO in files.embodiments else None
    tag = _embodiment(
        folder, files.embodiments, overrides.get("embodiment_tag"), "groot", files_read, usual
    )
    settings = files.settings(tag)
    sizes = decode_sizes(dict(stated), str(folder / "config.json"))
    widths = {
        key: sum(
            group_size(stats_of(settings.raw_stats, kind, key))
            for key in modality_keys(settings.modality, kind)
        )
        for key, kind in ((STATE, "state"), (ACTION, "action"))
    }
    cameras = [_camera(tag, key) for key in settings.video_keys]
    about = _Layout(folder, tag, cameras, sizes, widths)
    return about.config("groot", [3, 256, 256], settings.valid_horizon or sizes.action_horizon)


def _camera(embodiment: str, key: str) -> str:
    """Return the name of a view's camera; LIBERO's wrist camera is called image2."""
    return IMAGES + ("image2" if embodiment == LIBERO and key == "wrist_image" else key)


def _embodiment(
    folder: Path,
    known: Sequence[str],
    requested: Any,
    family: str,
    files: str,
    usual: str | None = None,
) -> str:
    """Return the embodiment to use: the requested one, the usual one, or the only one."""
    train = f"--policy.type={family} --policy.base_model_path={folder}"
    if not known:
        raise UsageError(
            f"{folder} has no statistics of any embodiment ({files}): actions cannot be decoded; "
            f"train it on a dataset with {train}",
            code="policy.missing-statistics",
        )
    if requested is None and (usual is not None or len(known) == 1):
        return usual or known[0]
    if requested is None:
        raise UsageError(
            f"{folder} is for several robots: choose one with --policy.embodiment_tag "
            f"({', '.join(known)})",
            code="policy.missing-embodiment",
        )
    if requested not in known:
        raise UsageError(
            f"{folder} has no statistics of the embodiment {requested!r} (choose "
            f"{', '.join(known)}){did_you_mean(str(requested), known)}; to train another: {train}",
            code="policy.unknown-embodiment",
        )
    return str(requested)


@dataclass(frozen=True)
class _Layout:
    """What a folder of NVIDIA's states of a policy."""

    folder: Path
    embodiment: str
    cameras: list[str]
    sizes: GrootSizes
    widths: Mapping[str, int]
    """Lengths of state and action."""

    def config(self, kind: str, image: list[int], horizon: int) -> dict[str, Any]:
        """Return LeRobot's config; the benchmark's image size replaces ``image``."""
        inputs: dict[str, Any] = {
            camera: {"type": "VISUAL", "shape": image} for camera in self.cameras
        }
        inputs[STATE] = {"type": "STATE", "shape": [self.widths[STATE]]}
        return {
            "type": kind,
            "base_model_path": str(self.folder),
            "embodiment_tag": self.embodiment,
            "chunk_size": horizon,
            "n_action_steps": horizon,
            "max_state_dim": self.sizes.max_state_dim,
            "max_action_dim": self.sizes.max_action_dim,
            "input_features": inputs,
            "output_features": {ACTION: {"type": "ACTION", "shape": [self.widths[ACTION]]}},
        }


@dataclass(frozen=True)
class EmbodimentStatistics:
    """Cameras of an embodiment, and minimum and maximum of its states and actions."""

    cameras: list[str]
    flat: dict[str, dict[str, list[float]]]


def statistics_of(base: str | None, embodiment: str) -> EmbodimentStatistics | None:
    """Return the statistics of ``embodiment`` in a local folder of NVIDIA's layout; None: none."""
    if base is None or not (Path(base).expanduser() / METADATA).is_file():
        return None
    where = Path(base).expanduser() / METADATA
    found = read_json(where).get(embodiment)
    return None if found is None else _statistics(found, f"{where}, {embodiment}")


def _statistics(stated: Any, where: str) -> EmbodimentStatistics:
    modalities = _object(stated, "modalities", where)
    statistics = _object(stated, "statistics", where)
    flat = {
        key: _bounds(_object(modalities, kind, where), _object(statistics, kind, where), where)
        for key, kind in ((STATE, "state"), (ACTION, "action"))
    }
    return EmbodimentStatistics(sorted(_object(modalities, "video", where)), flat)


def _bounds(
    groups: Mapping[str, Any], statistics: Mapping[str, Any], where: str
) -> dict[str, list[float]]:
    """Return minimum and maximum of all groups, one after the other."""
    found: dict[str, list[float]] = {"min": [], "max": []}
    for name, group in groups.items():
        if isinstance(group, dict) and group.get("rotation_type"):
            raise UsageError(
                f"{where}: the group {name!r} is a rotation, which is not supported; train on a "
                "dataset with --policy.base_model_path",
                code="policy.unsupported-statistics",
            )
        for bound in found:
            values = _object(statistics, name, where).get(bound)
            if not isinstance(values, list) or not all(isinstance(v, int | float) for v in values):
                raise UsageError(
                    f"{where}: {name} has no list of numbers {bound!r}",
                    code="policy.missing-statistics",
                )
            found[bound] += [float(value) for value in values]
    return found


def _object(stated: Any, key: str, where: str) -> dict[str, Any]:
    found = stated.get(key) if isinstance(stated, dict) else None
    if not isinstance(found, dict):
        raise UsageError(f"{where}: there is no {key}", code="policy.missing-statistics")
    return found


def from_n15_layouts(
    folder: Path, stated: Mapping[str, Any], overrides: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the config of a folder of N1.5; None: it is another model's.

    LeRobot 0.5.1 writes the type ``groot``, as N1.7 has, and always names the tokenizer's files.
    """
    if stated.get("model_type") == N15_MODEL_TYPE and "type" not in stated:
        return _from_n15(folder, stated, overrides)
    if stated.get("type") in (None, "groot") and stated.get("tokenizer_assets_repo"):
        return {**stated, "type": "groot_n15"}
    return None


def _from_n15(
    folder: Path, stated: Mapping[str, Any], overrides: Mapping[str, Any]
) -> dict[str, Any]:
    file = folder / METADATA
    known = sorted(read_json(file)) if file.is_file() else []
    tag = _embodiment(folder, known, overrides.get("embodiment_tag"), "groot_n15", METADATA)
    found = statistics_of(str(folder), tag)
    assert found is not None, "the embodiment is in the metadata"
    head, _ = decode_n15_sizes(dict(stated), str(folder / "config.json"))
    widths = {key: len(each["min"]) for key, each in found.flat.items()}
    about = _Layout(folder, tag, [IMAGES + name for name in found.cameras], head, widths)
    return about.config("groot_n15", [3, 224, 224], head.action_horizon)
