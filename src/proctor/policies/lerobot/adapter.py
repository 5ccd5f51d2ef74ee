"""LoRA adapters in the format of the ``peft`` library, read without it and merged into the base.

adapter_config.json         method, rank, scale, and the path of the base policy
adapter_model.safetensors   base_model.model.<layer>.lora_A.weight [r, in, ...]
                            base_model.model.<layer>.lora_B.weight [out, r, ...]
                            base_model.model.<layer>.weight of layers that were trained in full

A layer's weights become W + s B A, with s = lora_alpha / r. The layers are read from the names of
the tensors: ``target_modules`` may be an untrusted regex and is never run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
import torch
from torch import Tensor

from proctor.errors import UsageError
from proctor.fingerprint import ConfigUse
from proctor.policies.lerobot.checkpoint.location import locate, read_json
from proctor.policies.lerobot.checkpoint.tensor_file import FileHash, hash_file, read_tensor_file
from proctor.policies.lerobot.checkpoint.weights import check_tensor, read_weight_files
from proctor.policies.lerobot.config.presets import ADAPTER_INITS, ADAPTER_METHOD
from proctor.policies.lerobot.processors.limits import MOST_WIDTH
from proctor.policies.lerobot.processors.step import Tensors

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
BASE = "base/"
"""Prefix of the base policy's files in a run's record."""
_BEFORE = "base_model.model."
_PART = re.compile(r"(.+)\.lora_([AB])\.weight")
_IN_ATTENTION = ".base_layer.out_proj"
_TWICE = 2.0
"""peft (0.21) adds the update of an attention's output projection twice, in training and when it
merges; tests/unit/policies/test_adapter.py compares with the library."""
_LEARNT = re.compile(r"(.+\.lora_[AB])\.default(\.weight)")
_WHOLE = re.compile(r"(.+)\.modules_to_save\.default(\..+)")
"""Parameter names in a network with a peft adapter."""
_IDLE = {
    "peft_type",
    "base_model_name_or_path",
    "revision",
    "r",
    "lora_alpha",
    "lora_dropout",
    "use_rslora",
    "bias",
    "modules_to_save",
    "init_lora_weights",
    "auto_mapping",
    "task_type",
    "peft_version",
    "inference_mode",
    "target_modules",
    "exclude_modules",
    "layers_to_transform",
    "layers_pattern",
    "fan_in_fan_out",
    "megatron_core",
    "qalora_group_size",
    "runtime_config",
    "ensure_weight_tying",
}
"""Fields that are read, or are redundant once the tensor names are known. Any other field must be
unset, since it would change the computation above."""


@dataclass(frozen=True)
class AdapterConfig:
    """The fields of adapter_config.json that are used."""

    peft_type: str
    base_model_name_or_path: str
    r: Annotated[int, msgspec.Meta(ge=1, le=MOST_WIDTH)]
    lora_alpha: Annotated[float, msgspec.Meta(ge=-1e6, le=1e6)]
    revision: str | None = None
    lora_dropout: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0
    use_rslora: bool = False
    bias: str = "none"
    modules_to_save: list[str] | None = None
    init_lora_weights: bool | str = True
    target_modules: list[str] | str | None = None

    @property
    def scale(self) -> float:
        """Factor of the product B A."""
        return self.lora_alpha / (math.sqrt(self.r) if self.use_rslora else self.r)


@dataclass(frozen=True)
class Adapter:
    """An adapter: its config and tensors."""

    config: AdapterConfig
    raw_config: Mapping[str, Any]
    """The whole adapter_config.json, which is written back unchanged."""
    tensors: Tensors
    """Tensors by their names in the file; empty for a new adapter."""
    where: str = ""

    @property
    def layers(self) -> list[str]:
        """The adapted layers, by their names in LeRobot's policy."""
        found = [_PART.fullmatch(self._plain(key)) for key in self.tensors]
        return sorted({part[1].removesuffix(_IN_ATTENTION) for part in found if part is not None})

    def _plain(self, key: str) -> str:
        if not key.startswith(_BEFORE):
            raise UsageError(
                f"{self.where}: {key} is not the name of an adapter tensor",
                code="adapter.unknown-tensor",
            )
        return key.removeprefix(_BEFORE)

    def merged_into(self, base: Tensors) -> Tensors:
        """Return the base's weights with the adapter merged in."""
        merged = dict(base)
        for key, value in self.tensors.items():
            name = self._plain(key)
            part = _PART.fullmatch(name)
            if part is None:  # a layer that was trained in full
                check_tensor(name, self._weight(name, name, merged), value, self.where)
                merged[name] = value
            elif part[2] == "A":
                self._add(part[1], value, merged)
            elif key.replace(".lora_B.", ".lora_A.") not in self.tensors:
                raise UsageError(
                    f"{self.where}: {key} has no matching lora_A", code="adapter.missing-tensor"
                )
        return merged

    def _add(self, layer: str, into: Tensor, merged: Tensors) -> None:
        """Add B A to a layer's weights, after all shapes are checked."""
        key = f"{_BEFORE}{layer}.lora_B.weight"
        back = self.tensors.get(key)
        if back is None:
            raise UsageError(f"{self.where}: {key} is missing", code="adapter.missing-tensor")
        in_attention = layer.endswith(_IN_ATTENTION)
        name = f"{layer.replace(_IN_ATTENTION, '.out_proj')}.weight"
        if name not in merged:
            name = f"{layer}.in_proj_weight"
        weight, rank = self._weight(name, key, merged), self.config.r
        if weight.dim() < 2 or not weight.is_floating_point():
            raise UsageError(
                f"{self.where}: {key} is for {name}, which is not a floating-point matrix",
                code="adapter.unknown-layer",
            )
        first = key.replace(".lora_B.", ".lora_A.")
        for name_in_file, shape, found in (
            (first, (rank, *weight.shape[1:]), into),
            (key, (len(weight), rank, *(1 for _ in weight.shape[2:])), back),
        ):
            check_tensor(name_in_file, torch.empty(shape, device="meta"), found, self.where)
        scale = self.config.scale * (_TWICE if in_attention else 1.0)
        change = torch.tensordot(back.flatten(1).float(), into.float(), dims=1) * scale
        merged[name] = (weight.float() + change).to(weight.dtype)

    def _weight(self, name: str, key: str, merged: Tensors) -> Tensor:
        if name not in merged:
            raise UsageError(
                f"{self.where}: {key} matches no layer of the base policy",
                code="adapter.unknown-layer",
            )
        return merged[name]


@dataclass(frozen=True)
class Weights:
    """The weights of a checkpoint, and the files they were read from."""

    tensors: Tensors
    file: Path
    """File of the network's own weights, or the index of its shards."""
    files: dict[str, FileHash]
    """Hashes of all files, by their names in a run's record."""
    adapter: Adapter | None = field(default=None)
    """The adapter, if there is one."""

    def merging(self, use: ConfigUse) -> Callable[[Tensors], Tensors] | None:
        """Return the function that merges the adapter into the base's weights; None: no adapter.

        Training keeps the adapter separate; the function then only checks that it fits.
        """
        if self.adapter is None:
            return None
        merged = self.adapter.merged_into

        def checked(base: Tensors) -> Tensors:
            merged(base)
            return base

        return checked if use is ConfigUse.TRAINING else merged


def read_weights(folder: Path, *, adapted: bool) -> Weights:
    """Return the weights in ``folder``; for an adapter, the base's weights and the adapter."""
    if not adapted:
        tensors, files = read_weight_files(folder)
        return Weights(tensors, folder / next(iter(files)), files)
    config, stated = read_adapter_config(folder / ADAPTER_CONFIG)
    file = folder / ADAPTER_WEIGHTS
    read = read_tensor_file(file)
    adapter = Adapter(config, stated, read.tensors, str(file))
    base = _base_of(config, folder / ADAPTER_CONFIG)
    tensors, held = read_weight_files(base)
    files = {
        ADAPTER_CONFIG: hash_file(folder / ADAPTER_CONFIG),
        ADAPTER_WEIGHTS: read.hash,
        **{f"{BASE}{name}": found for name, found in held.items()},
    }
    return Weights(tensors, base / next(iter(held)), files, adapter)


def read_adapter_config(file: Path) -> tuple[AdapterConfig, dict[str, Any]]:
    """Return the parsed adapter_config.json, and its raw content."""
    stated = read_json(file)
    try:
        config = msgspec.convert(stated, AdapterConfig)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        raise UsageError(f"{file}: {error}", code="adapter.invalid-config") from None
    if config.peft_type.upper() != ADAPTER_METHOD:
        raise UsageError(
            f"{file}: peft_type is {config.peft_type!r} (supported: {ADAPTER_METHOD})",
            code="adapter.unsupported",
        )
    if config.bias != "none":
        raise UsageError(
            f"{file}: bias is {config.bias!r} (supported: 'none')",
            code="adapter.unsupported",
        )
    if isinstance(config.init_lora_weights, str) and config.init_lora_weights not in ADAPTER_INITS:
        raise UsageError(
            f"{file}: init_lora_weights is {config.init_lora_weights!r}, which also changes the "
            f"base policy (supported: {', '.join(ADAPTER_INITS)})",
            code="adapter.unsupported",
        )
    for name, value in stated.items():
        if name not in _IDLE and value not in (None, False, {}, [], ""):
            raise UsageError(
                f"{file}: {name} is set, which is not supported", code="adapter.unsupported"
            )
    return config, stated


def _base_of(config: AdapterConfig, file: Path) -> Path:
    """Return the folder of the adapter's base policy."""
    try:
        return locate(config.base_model_name_or_path, config.revision).folder
    except UsageError as error:
        raise UsageError(
            f"the base policy of this adapter is not available: {error} "
            f"(its path is base_model_name_or_path in {file})",
            code="adapter.missing-base",
        ) from None


def adapter_names(keys: Iterable[str], prefix: str) -> dict[str, str]:
    """Map the adapter parameters in a network's state dict to their names in a file."""
    found = {key: _LEARNT.fullmatch(key) or _WHOLE.fullmatch(key) for key in keys}
    return {key: _BEFORE + prefix + m[1] + m[2] for key, m in found.items() if m is not None}
