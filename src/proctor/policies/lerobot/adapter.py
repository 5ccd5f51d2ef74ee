"""Adapters as the ``peft`` library saves them: read without it, merged into the base's weights.

adapter_config.json         which method, its rank and strength, and where the base policy is
adapter_model.safetensors   base_model.model.<layer>.lora_A.weight [r, in, ...]
                            base_model.model.<layer>.lora_B.weight [out, r, ...]
                            base_model.model.<layer>.weight, of layers that were trained whole

A layer's weights become W + s B A, with s = lora_alpha / r. Which layers these are is read from the
names of the tensors: ``target_modules`` may be a regex of somebody else's, and is never run.
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
from proctor.policies.lerobot.limits import MOST_WIDTH
from proctor.policies.lerobot.location import locate, read_json
from proctor.policies.lerobot.presets import ADAPTER_INITS, ADAPTER_METHOD
from proctor.policies.lerobot.step import Tensors
from proctor.policies.lerobot.tensor_file import FileHash, hash_file, read_tensor_file
from proctor.policies.lerobot.weights import check_tensor, read_stored

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
BASE = "base/"
"""Stands before the names of the base policy's files."""
_BEFORE = "base_model.model."
_PART = re.compile(r"(.+)\.lora_([AB])\.weight")
_IN_ATTENTION = ".base_layer.out_proj"
_TWICE = 2.0
"""peft (0.21) adds what it learns for the last projection of an attention twice, in training and
when it merges; tests/unit/policies/test_adapter.py holds it against the library."""
_LEARNT = re.compile(r"(.+\.lora_[AB])\.default(\.weight)")
_WHOLE = re.compile(r"(.+)\.modules_to_save\.default(\..+)")
"""Names in a network that peft has put an adapter into."""
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
"""What is read, and what says nothing once the names of the tensors are known; anything else must
be unset: it asks for another computation than the one above."""


@dataclass(frozen=True)
class AdapterConfig:
    """What is read of adapter_config.json."""

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
        """What the product of the two matrices is multiplied by."""
        return self.lora_alpha / (math.sqrt(self.r) if self.use_rslora else self.r)


@dataclass(frozen=True)
class Adapter:
    """An adapter on its way into a network, or in one."""

    config: AdapterConfig
    told: Mapping[str, Any]
    """All that adapter_config.json says, to be written again as it was."""
    tensors: Tensors
    """By their names in the file; empty where the adapter is new."""
    where: str = ""

    @property
    def layers(self) -> list[str]:
        """The layers that it is for, by their names in LeRobot's policy.

        Raises:
            UsageError: a tensor that is of no adapter.
        """
        found = [_PART.fullmatch(self._plain(key)) for key in self.tensors]
        return sorted({part[1].removesuffix(_IN_ATTENTION) for part in found if part is not None})

    def _plain(self, key: str) -> str:
        if not key.startswith(_BEFORE):
            raise UsageError(f"{self.where}: {key} is no name of an adapter's tensor")
        return key.removeprefix(_BEFORE)

    def merged_into(self, base: Tensors) -> Tensors:
        """Return the base's weights with what the adapter has learnt.

        Raises:
            UsageError: a tensor is for no layer of the base, or of another shape.
        """
        merged = dict(base)
        for key, value in self.tensors.items():
            name = self._plain(key)
            part = _PART.fullmatch(name)
            if part is None:  # a layer that was trained whole
                check_tensor(name, self._weight(name, name, merged), value, self.where)
                merged[name] = value
            elif part[2] == "A":
                self._add(part[1], value, merged)
            elif key.replace(".lora_B.", ".lora_A.") not in self.tensors:
                raise UsageError(f"{self.where}: {key} has no lora_A beside it")
        return merged

    def _add(self, layer: str, into: Tensor, merged: Tensors) -> None:
        """Add B A of a layer to its weights; nothing is computed before all shapes are known."""
        key = f"{_BEFORE}{layer}.lora_B.weight"
        back = self.tensors.get(key)
        if back is None:
            raise UsageError(f"{self.where}: {key} is missing")
        in_attention = layer.endswith(_IN_ATTENTION)
        name = f"{layer.replace(_IN_ATTENTION, '.out_proj')}.weight"
        if name not in merged:
            name = f"{layer}.in_proj_weight"
        weight, rank = self._weight(name, key, merged), self.config.r
        if weight.dim() < 2 or not weight.is_floating_point():
            raise UsageError(f"{self.where}: {key} is for {name}, which is no matrix")
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
            raise UsageError(f"{self.where}: {key} is for no layer of the base policy")
        return merged[name]


@dataclass(frozen=True)
class Weights:
    """The weights of a checkpoint, and what they were read from."""

    tensors: Tensors
    file: Path
    """Where the network's own weights are, or the index of the files that have them."""
    files: dict[str, FileHash]
    """The hashes of all files, by the names that a run's record gives them."""
    adapter: Adapter | None = field(default=None)
    """What was learnt beside them."""

    def merging(self, use: ConfigUse) -> Callable[[Tensors], Tensors] | None:
        """Return what makes of the base's weights those that are used; None: they are.

        For a training the adapter, which is what is trained, stays apart; it is checked as well.
        """
        if self.adapter is None:
            return None
        merged = self.adapter.merged_into

        def checked(base: Tensors) -> Tensors:
            merged(base)
            return base

        return checked if use is ConfigUse.TRAINING else merged


def read_weights(folder: Path, *, adapted: bool) -> Weights:
    """Return the weights in ``folder``; of an adapter, its base's, and the adapter.

    Raises:
        UsageError: a file is missing, damaged, or asks for what is not known.
    """
    if not adapted:
        tensors, files = read_stored(folder)
        return Weights(tensors, folder / next(iter(files)), files)
    config, told = read_adapter_config(folder / ADAPTER_CONFIG)
    file = folder / ADAPTER_WEIGHTS
    read = read_tensor_file(file)
    adapter = Adapter(config, told, read.tensors, str(file))
    base = _base_of(config, folder / ADAPTER_CONFIG)
    tensors, held = read_stored(base)
    files = {
        ADAPTER_CONFIG: hash_file(folder / ADAPTER_CONFIG),
        ADAPTER_WEIGHTS: read.hash,
        **{f"{BASE}{name}": found for name, found in held.items()},
    }
    return Weights(tensors, base / next(iter(held)), files, adapter)


def read_adapter_config(file: Path) -> tuple[AdapterConfig, dict[str, Any]]:
    """Return what is read of adapter_config.json, and all that it says.

    Raises:
        UsageError: it is not there, of another method, or asks for what is not computed here.
    """
    told = read_json(file)
    try:
        config = msgspec.convert(told, AdapterConfig)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        raise UsageError(f"{file}: {error}") from None
    if config.peft_type.upper() != ADAPTER_METHOD:
        raise UsageError(f"{file}: peft_type is {config.peft_type!r} (we know {ADAPTER_METHOD})")
    if config.bias != "none":
        raise UsageError(f"{file}: bias is {config.bias!r}, which is not read here (only 'none')")
    if isinstance(config.init_lora_weights, str) and config.init_lora_weights not in ADAPTER_INITS:
        raise UsageError(
            f"{file}: init_lora_weights is {config.init_lora_weights!r}, which changes the base "
            f"policy, too: not read here (only {', '.join(ADAPTER_INITS)})"
        )
    for name, value in told.items():
        if name not in _IDLE and value not in (None, False, {}, [], ""):
            raise UsageError(f"{file}: {name} is set, which is not read here")
    return config, told


def _base_of(config: AdapterConfig, file: Path) -> Path:
    """Return the folder of the policy that an adapter is for."""
    try:
        return locate(config.base_model_name_or_path, config.revision).folder
    except UsageError as error:
        raise UsageError(
            f"the base policy of this adapter cannot be had: {error} "
            f"(base_model_name_or_path in {file} says where it is)"
        ) from None


def adapter_names(keys: Iterable[str], prefix: str) -> dict[str, str]:
    """Return, of the names in a network's state, those of adapters, with their names in a file."""
    found = {key: _LEARNT.fullmatch(key) or _WHOLE.fullmatch(key) for key in keys}
    return {key: _BEFORE + prefix + m[1] + m[2] for key, m in found.items() if m is not None}
