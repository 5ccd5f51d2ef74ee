"""Weights on disk: safetensors in, checked key by key before any network sees them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from proctor.errors import UsageError
from proctor.machine.files import MOST_JSON
from proctor.policies.lerobot.config import CheckpointConfig
from proctor.policies.lerobot.location import read_json
from proctor.policies.lerobot.processors import Stats
from proctor.policies.lerobot.step import Tensors
from proctor.policies.runtime.network import Network

LEGACY = re.compile(r"^(normalize_inputs|normalize_targets|unnormalize_outputs)\.(?:buffer_)?(.+)$")
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
SHARD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}\.safetensors")
MOST_SHARDS = 1000
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")


class Undrawn(TorchFunctionMode):
    """While it is on, layers neither allocate nor initialise weights that are about to be replaced.

    What a layer makes empty, to be filled later, is made without memory; tables that it computes
    itself are as always. A network of billions of weights is then built in no time and no memory.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Do what was asked, unless it is to initialise a tensor."""
        kwargs = kwargs or {}
        if func is torch.empty and kwargs.get("device") is None:
            kwargs = {**kwargs, "device": "meta"}
        if func in (Tensor.normal_, Tensor.uniform_):
            return args[0]
        if func is torch.linalg.qr:  # of orthogonal weights
            return args[0], args[0]
        if getattr(func, "__module__", None) == nn.init.__name__:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def read_tensors(path: Path) -> Tensors:
    """Return all tensors of a safetensors file, on the CPU.

    Raises:
        UsageError: there is no such file, it is a pickle, truncated or otherwise not whole.
    """
    if not path.is_file():
        raise UsageError(_why_missing(path))
    with path.open("rb") as file:
        start = file.read(9)
    # Safetensors begin with the length of a JSON header, whose bytes may look like anything.
    if start[8:] != b"{" and (start[:2] == b"PK" or start[:1] == b"\x80"):
        raise UsageError(f"{path} is a pickle, which can run code: refused (use safetensors)")
    try:
        with safe_open(path, "pt", device="cpu") as file:
            return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError) as error:
        raise UsageError(f"{path} is damaged{_size_hint(path)}: {error}") from None


def read_stored(folder: Path) -> tuple[Tensors, dict[str, Path]]:
    """Return the weights in ``folder``, of one file or of several, and the files by name.

    Numbers are not read yet: they are mapped into memory, and come when they are looked at.

    Raises:
        UsageError: a file is missing, damaged, or does not hold what the index says.
    """
    index = folder / INDEX_FILE
    if (folder / WEIGHTS_FILE).is_file() or not index.is_file():
        return read_tensors(folder / WEIGHTS_FILE), {WEIGHTS_FILE: folder / WEIGHTS_FILE}
    places = _shards(index)
    names = sorted(set(places.values()))
    held = {name: read_tensors(folder / name) for name in names}
    tensors: Tensors = {}
    for key, name in places.items():
        if key not in held[name]:
            raise UsageError(f"{index}: {key} is to be in {name}, which does not have it")
        tensors[key] = held[name][key]
    return tensors, {name: folder / name for name in (INDEX_FILE, *names)}


def _shards(index: Path) -> dict[str, str]:
    """Return which file has which tensor: files that lie beside the index, and not too many."""
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise UsageError(f"{index}: its weight_map names no tensors")
    for key, name in places.items():
        if not isinstance(name, str) or not SHARD.fullmatch(name):
            raise UsageError(f"{index}: {key} is in {name!r}, which is no file of weights here")
    if len(set(places.values())) > MOST_SHARDS:
        raise UsageError(f"{index}: more than {MOST_SHARDS} files of weights")
    return places


def _why_missing(path: Path) -> str:
    pickles = sorted(p.name for p in path.parent.glob("*") if p.suffix in PICKLES)
    if pickles:
        return (
            f"{path.parent} has {pickles[0]} but no {path.name}: pickles can run code, so only "
            "safetensors are read"
        )
    if (path.parent / "adapter_config.json").is_file():
        return (
            f"{path.parent} is a PEFT adapter, and no whole policy (with use_peft in config.json)"
        )
    if (path.parent / "pytorch_model_fsdp_0").is_dir():
        return f"{path.parent} is sharded; convert it with lerobot-convert-dcp"
    return f"{path.parent} has no {path.name}"


@dataclass(frozen=True)
class _Entry:
    """What a safetensors header says of one tensor; of its metadata, nothing."""

    data_offsets: tuple[int, int] = (0, 0)


def _size_hint(path: Path) -> str:
    """Return how many bytes there should be and are, where the header is readable."""
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = msgspec.json.decode(file.read(min(length, MOST_JSON)), type=dict[str, _Entry])
    except (ValueError, RecursionError):
        return f" ({size} bytes, no readable header)"
    ends = {key: entry.data_offsets[1] for key, entry in header.items()}
    needed = 8 + length + max(ends.values(), default=0)
    cut = [key for key, end in ends.items() if 8 + length + end > size]
    if not cut:
        return ""
    first = min(cut, key=lambda key: ends[key])
    return f" (expected {needed} bytes, found {size}; cut off in {first})"


def split_legacy(tensors: Tensors, config: CheckpointConfig) -> tuple[Tensors, Stats, Stats]:
    """Return weights, input statistics and output statistics of a file from before LeRobot 0.4.

    There the statistics stood between the weights, with the dots of feature names as underscores:
    only the config can tell which dots they were.
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
            raise UsageError(f"{key} is for no feature of the config ({', '.join(names)})")
        side = outputs if found[1] == "unnormalize_outputs" else inputs
        side.setdefault(by_underscore[flat], {})[statistic] = value
    return weights, inputs, outputs


def fill(
    network: Network,
    tensors: Tensors,
    prefix: str,
    where: str,
    merged: Callable[[Tensors], Tensors] | None = None,
) -> list[str]:
    """Give ``network`` its weights; return the names left over.

    Nothing is assigned before everything is checked. ``merged`` returns the weights that it takes
    of these, once they have their names of today: what an adapter has learnt is under those.

    Raises:
        UsageError: a key is missing, has the wrong shape or type, or holds NaN or infinity.
    """
    given = {key.replace("._orig_mod", "").removeprefix(prefix): t for key, t in tensors.items()}
    given = network.adopt(given)
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


def fill_part(part: nn.Module, tensors: Tensors, where: str) -> None:
    """Copy the weights of a part of a network, whose names there are those of ``tensors``.

    Raises:
        UsageError: a key is missing, has the wrong shape or type, or holds NaN or infinity.
    """
    wanted = part.state_dict()
    for key, expected in wanted.items():
        check_tensor(key, expected, tensors.get(key), where)
    part.load_state_dict({key: tensors[key] for key in wanted})


def check_tensor(key: str, expected: Tensor, found: Tensor | None, where: str) -> None:
    """Refuse a tensor that cannot take the place of ``expected``.

    Raises:
        UsageError: it is missing, of another shape or type, or holds NaN or infinity.
    """
    shape = list(expected.shape)
    if found is None:
        raise UsageError(f"{where}: {key} is missing (expected {shape})")
    if found.shape != expected.shape:
        raise UsageError(f"{where}: {key} expected {shape}, found {list(found.shape)}")
    if found.is_floating_point() != expected.is_floating_point():
        raise UsageError(f"{where}: {key} expected {expected.dtype}, found {found.dtype}")
    if found.is_complex() or found.is_quantized:
        raise UsageError(f"{where}: {key} expected {expected.dtype}, found {found.dtype}")
    if found.is_floating_point() and found.element_size() < 2:
        found = found.float()  # torch counts nothing in float8
    if found.is_floating_point() and found.numel():
        # As one pass without memory of its own: the tensors of language models have gigabytes.
        low, high = (float(end) for end in torch.aminmax(found))
        if not (math.isfinite(low) and math.isfinite(high)):
            what = "NaN" if math.isnan(low) else "infinity"
            raise UsageError(f"{where}: {key} holds {what}")
