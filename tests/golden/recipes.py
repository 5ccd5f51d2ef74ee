"""Where the golden data lies (data/README.md) and how its inputs and weights are made."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

GOLDEN = Path(__file__).parent / "data"
NEVER_FILLED = (
    "vae_encoder_pos_enc",
    "pos_grid",
    "attn.bias",
    "initted",
    "cluster_size",
    "embed_avg",
    "pos_idx_to_embed",
)


def recipe_input(name: str, shape: list[int], lo: float, hi: float) -> torch.Tensor:
    n = int(np.prod(shape))
    x = np.sin(np.arange(n) * 1.7 + zlib.crc32(name.encode()) % 977)
    return torch.from_numpy(((x + 1) / 2 * (hi - lo) + lo).reshape(shape).astype(np.float32))


def hash_input(name: str, shape: list[int], lo: float, hi: float) -> torch.Tensor:
    x = (np.arange(int(np.prod(shape)), dtype=np.uint64) + zlib.crc32(name.encode())) % 2**32
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor) % 2**32
    values = x.astype(np.float64) / 2**32 * (hi - lo) + lo
    return torch.from_numpy(values.reshape(shape).astype(np.float32))


def recipe_weight(key: str, shape: torch.Size) -> torch.Tensor:
    n = int(np.prod(shape))
    x = np.sin(np.arange(n) * 0.37 + zlib.crc32(key.encode()) % 10007)
    if key.endswith("running_var"):
        x = 1 + 0.3 * x
    elif key.endswith("running_mean"):
        x = 0.1 * x
    elif len(shape) >= 2:
        x = x / np.sqrt(np.prod(shape[1:]))
    elif key.endswith("weight"):
        x = 1 + 0.1 * x
    else:
        x = 0.05 * x
    return torch.from_numpy(x.reshape(tuple(shape)).astype(np.float32))


def hashed_weight(key: str, shape: torch.Size) -> torch.Tensor:
    """Return a weight of full rank; the sines of ``recipe_weight`` make matrices of rank 2."""
    if len(shape) < 2:
        return recipe_weight(key, shape)
    width = float(np.sqrt(3 / np.prod(shape[1:])))
    return hash_input(key, list(shape), -width, width)


def fill_weights(network: torch.nn.Module, prefix: str, matrices: float = 1.0) -> None:
    """Give every tensor of ``network`` its recipe value; ``prefix`` is the checkpoint's.

    Matrices are scaled by ``matrices``: a deep network of large ones amplifies rounding.
    """
    for key, tensor in network.state_dict().items():
        if tensor.is_floating_point() and not key.endswith(NEVER_FILLED):
            made = recipe_weight(prefix + key, tensor.shape)
            tensor.copy_(made * matrices if made.dim() > 1 else made)


def load_case(name: str) -> tuple[dict[str, Any], dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return config, inputs and expected outputs of one golden folder."""
    folder = GOLDEN / name
    inputs = load_file(folder / "inputs.safetensors")
    notes = json.loads((folder / "notes.json").read_text())
    for key, recipe in notes.get("recipe_inputs", {}).items():
        make = hash_input if recipe.get("kind") == "hash" else recipe_input
        inputs[key] = make(recipe["name"], recipe["shape"], recipe["lo"], recipe["hi"])
    config = json.loads((folder / "config.json").read_text())
    return config, inputs, load_file(folder / "outputs.safetensors")


def assert_close(name: str, found: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    """Compare with rtol = atol = ``tolerance``, and print the largest difference for the log."""
    worst = (found - expected).abs().max().item()
    print(f"{name}: max |difference| {worst:.1e}")
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
