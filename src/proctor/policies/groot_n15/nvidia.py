"""Files of N1.5 in other layouts: NVIDIA's own folders and LeRobot 0.5.1's config. No torch here.

NVIDIA's folder has:

config.json                    sizes (model_type gr00t_n1_5), no LeRobot ``type``
*.safetensors                  weights
experiment_cfg/metadata.json   groups of states and actions and their statistics, by embodiment

States and actions are scaled to -1 to 1 by their minimum and maximum, as NVIDIA's configurations
for arms do. Groups with rotations need a change of representation that the files do not state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proctor.errors import UsageError, did_you_mean
from proctor.features import ACTION, IMAGES, STATE
from proctor.policies.groot_n15.sizes import MODEL_TYPE, decode_sizes
from proctor.policies.lerobot.location import read_json

METADATA = "experiment_cfg/metadata.json"
_PLACEHOLDER = [3, 224, 224]
"""Shape of a camera image; the benchmark's replaces it."""


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
        key: _flat(_object(modalities, kind, where), _object(statistics, kind, where), where)
        for key, kind in ((STATE, "state"), (ACTION, "action"))
    }
    return EmbodimentStatistics(sorted(_object(modalities, "video", where)), flat)


def _flat(
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


def from_other_layouts(
    folder: Path, stated: Mapping[str, Any], overrides: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the config of a folder of N1.5; None: it is another model's.

    LeRobot 0.5.1 writes the type ``groot``, as N1.7 has, and always names the tokenizer's files.
    """
    if stated.get("model_type") == MODEL_TYPE and "type" not in stated:
        return _from_nvidia(folder, stated, overrides)
    if stated.get("type") in (None, "groot") and stated.get("tokenizer_assets_repo"):
        return {**stated, "type": "groot_n15"}
    return None


def _from_nvidia(
    folder: Path, stated: Mapping[str, Any], overrides: Mapping[str, Any]
) -> dict[str, Any]:
    tag = _embodiment(folder, overrides.get("embodiment_tag"))
    found = statistics_of(str(folder), tag)
    assert found is not None, "the embodiment is in the metadata"
    head, _ = decode_sizes(dict(stated), str(folder / "config.json"))
    inputs: dict[str, Any] = {
        IMAGES + name: {"type": "VISUAL", "shape": _PLACEHOLDER} for name in found.cameras
    }
    widths = {key: len(each["min"]) for key, each in found.flat.items()}
    inputs[STATE] = {"type": "STATE", "shape": [widths[STATE]]}
    return {
        "type": "groot_n15",
        "base_model_path": str(folder),
        "embodiment_tag": tag,
        "chunk_size": head.action_horizon,
        "n_action_steps": head.action_horizon,
        "max_state_dim": head.max_state_dim,
        "max_action_dim": head.max_action_dim,
        "input_features": inputs,
        "output_features": {ACTION: {"type": "ACTION", "shape": [widths[ACTION]]}},
    }


def _embodiment(folder: Path, requested: Any) -> str:
    """Return the embodiment to use: the requested one, or the only one."""
    file = folder / METADATA
    known = sorted(read_json(file)) if file.is_file() else []
    if not known:
        raise UsageError(
            f"{folder} has no statistics of any embodiment ({METADATA}): actions cannot be "
            f"decoded; train it on a dataset with --policy.type=groot_n15 "
            f"--policy.base_model_path={folder}",
            code="policy.missing-statistics",
        )
    if requested is None and len(known) == 1:
        return known[0]
    if requested is None:
        raise UsageError(
            f"{folder} is for several robots: choose one with --policy.embodiment_tag "
            f"({', '.join(known)})",
            code="policy.missing-embodiment",
        )
    if requested not in known:
        raise UsageError(
            f"{folder} has no statistics of the embodiment {requested!r} (choose "
            f"{', '.join(known)}){did_you_mean(str(requested), known)}",
            code="policy.unknown-embodiment",
        )
    return str(requested)
