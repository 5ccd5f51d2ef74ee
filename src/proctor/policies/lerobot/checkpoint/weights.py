"""Read a checkpoint's weights and check every tensor before it is loaded into the network."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from proctor.errors import UsageError
from proctor.policies.lerobot.checkpoint.location import read_json
from proctor.policies.lerobot.checkpoint.tensor_file import (
    FileHash,
    FileStates,
    hash_file,
    read_tensor_file,
)
from proctor.policies.lerobot.config.config import CheckpointConfig
from proctor.policies.lerobot.processors.processors import Stats
from proctor.policies.lerobot.processors.step import Tensors
from proctor.policies.runtime.network import Network

LEGACY = re.compile(r"^(normalize_inputs|normalize_targets|unnormalize_outputs)\.(?:buffer_)?(.+)$")
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
SHARD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}\.safetensors")
MOST_SHARDS = 1000


class SkipWeightInit(TorchFunctionMode):
    """Context in which layers neither allocate nor initialise weights, since a file replaces them.

    ``torch.empty`` makes tensors on the meta device; tables that a layer computes are unchanged. A
    network of billions of weights is then built at once and without memory.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call ``func``, unless it allocates or initialises a weight."""
        kwargs = kwargs or {}
        if func is torch.empty and kwargs.get("device") is None:
            kwargs = {**kwargs, "device": "meta"}
        if func in (Tensor.normal_, Tensor.uniform_):
            return args[0]
        if func is torch.linalg.qr:  # in orthogonal initialisation
            return args[0], args[0]
        if getattr(func, "__module__", None) == nn.init.__name__:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def read_weight_files(folder: Path) -> tuple[Tensors, dict[str, FileHash]]:
    """Return the weights in ``folder``, from one file or from shards, and the files by name."""
    index = folder / INDEX_FILE
    if (folder / WEIGHTS_FILE).is_file() or not index.is_file():
        read = read_tensor_file(folder / WEIGHTS_FILE)
        return read.tensors, {WEIGHTS_FILE: read.hash}
    states = FileStates(folder)
    places = _shards(index)
    names = sorted(set(places.values()))
    held = {name: read_tensor_file(folder / name) for name in names}
    tensors: Tensors = {}
    for key, name in places.items():
        if key not in held[name].tensors:
            raise UsageError(
                f"{index}: {key} should be in {name}, but is missing there",
                code="checkpoint.missing-tensor",
            )
        tensors[key] = held[name].tensors[key]
    files = {INDEX_FILE: hash_file(index)}
    states.check((INDEX_FILE, *names))
    return tensors, files | {name: read.hash for name, read in held.items()}


def _shards(index: Path) -> dict[str, str]:
    """Return the file of each tensor; only files beside the index are allowed."""
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise UsageError(
            f"{index}: its weight_map names no tensors", code="checkpoint.invalid-index"
        )
    for key, name in places.items():
        if not isinstance(name, str) or not SHARD.fullmatch(name):
            raise UsageError(
                f"{index}: {key} is in {name!r}, which is not a safetensors file beside it",
                code="checkpoint.invalid-index",
            )
    if len(set(places.values())) > MOST_SHARDS:
        raise UsageError(
            f"{index}: more than {MOST_SHARDS} files of weights", code="checkpoint.invalid-index"
        )
    return places


def split_legacy(tensors: Tensors, config: CheckpointConfig) -> tuple[Tensors, Stats, Stats]:
    """Return weights, input statistics and output statistics of a file from before LeRobot 0.4.

    Such files hold the statistics among the weights, with underscores for the dots of feature
    names; the config's feature names restore the dots.
    """
    names = {**config.input_features, **config.output_features}
    by_underscore = {key.replace(".", "_"): key for key in names}
    weights: Tensors = {}
    inputs: Stats = {}
    outputs: Stats = {}
    for key, value in tensors.items():
        found = LEGACY.match(key)
        if not found:
            weights[key] = value
            continue
        flat, _, statistic = found[2].replace(".", "_").rpartition("_")
        if flat not in by_underscore:
            raise UsageError(
                f"{key} belongs to no feature of the config ({', '.join(names)})",
                code="checkpoint.unknown-feature",
            )
        side = outputs if found[1] == "unnormalize_outputs" else inputs
        side.setdefault(by_underscore[flat], {})[statistic] = value
    return weights, inputs, outputs


def load_weights(
    network: Network,
    tensors: Tensors,
    prefix: str,
    where: str,
    merged: Callable[[Tensors], Tensors] | None = None,
) -> list[str]:
    """Load weights into ``network``; return the names of unused tensors.

    Everything is checked before anything is assigned. ``merged`` merges an adapter into the
    weights, after they have been renamed to today's names.
    """
    given = {key.replace("._orig_mod", "").removeprefix(prefix): t for key, t in tensors.items()}
    given = network.remap_state_dict(given)
    wanted = network.state_dict()
    for name, other in network.tied.items():
        found = given.get(other, given.get(name))
        given |= {} if found is None else {name: found, other: found}
    if merged is not None:
        named = merged({prefix + key: value for key, value in given.items()})
        given = {key.removeprefix(prefix): value for key, value in named.items()}
    for key, expected in wanted.items():
        check_tensor(prefix + key, expected, given.get(key), where)
    network.load_state_dict({key: given[key] for key in wanted}, assign=True)
    for name, other in network.tied.items():
        owner, _, parameter = name.rpartition(".")
        setattr(network.get_submodule(owner), parameter, network.get_parameter(other))
    empty = [n for n, b in network.named_buffers() if b.is_meta]
    assert not empty, f"made empty, kept in no file, and never computed: {empty}"
    return [prefix + key for key in given if key not in wanted]


def load_submodule(part: nn.Module, tensors: Tensors, where: str) -> None:
    """Copy ``tensors`` into a submodule with the same parameter names."""
    wanted = part.state_dict()
    for key, expected in wanted.items():
        check_tensor(key, expected, tensors.get(key), where)
    part.load_state_dict({key: tensors[key] for key in wanted})


def check_tensor(key: str, expected: Tensor, found: Tensor | None, where: str) -> None:
    """Refuse a tensor that does not match ``expected``."""
    shape = list(expected.shape)
    if found is None:
        raise UsageError(
            f"{where}: {key} is missing (expected {shape})", code="checkpoint.missing-tensor"
        )
    if found.shape != expected.shape:
        raise UsageError(
            f"{where}: {key} expected {shape}, found {list(found.shape)}",
            code="checkpoint.shape-mismatch",
        )
    if found.is_floating_point() != expected.is_floating_point():
        raise UsageError(
            f"{where}: {key} expected {expected.dtype}, found {found.dtype}",
            code="checkpoint.dtype-mismatch",
        )
    if found.is_complex() or found.is_quantized:
        raise UsageError(
            f"{where}: {key} expected {expected.dtype}, found {found.dtype}",
            code="checkpoint.dtype-mismatch",
        )
    if found.is_floating_point() and found.element_size() < 2:
        found = found.float()  # torch has no aminmax for float8
    if found.is_floating_point() and found.numel():
        # One pass without extra memory: tensors of language models have gigabytes.
        low, high = (float(end) for end in torch.aminmax(found))
        if not (math.isfinite(low) and math.isfinite(high)):
            what = "NaN" if math.isnan(low) else "infinity"
            raise UsageError(f"{where}: {key} holds {what}", code="checkpoint.not-finite")
