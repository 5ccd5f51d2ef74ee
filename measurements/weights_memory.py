"""What loading a policy takes of host memory and of time, against the bytes of its weights.

    python measurements/weights_memory.py [--gigabytes=2] [--shards=1] [--device=cpu]

Writes a checkpoint of made-up bfloat16 weights (a multi_task_dit as wide as is asked for, so that
nothing has to be downloaded), loads it in a process of its own, and says what that process had in
memory at most beyond what it had before, mapped files included.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from tests.unit.policies.tiny_tokenizer import write_clip

from proctor.features import Feature, FeatureKind
from proctor.policies.dit.config import PLUGIN, DitConfig
from proctor.policies.lerobot.checkpoint import built_network, read_checkpoint
from proctor.policies.lerobot.config import encode_config
from proctor.policies.lerobot.pipelines import default_pipelines
from proctor.policies.lerobot.saving import write_pipeline
from proctor.policies.lerobot.weights import Undrawn
from proctor.policies.runtime.chunk_policy import ChunkPolicy

INPUTS = {"observation.state": Feature(FeatureKind.STATE, (8,), "float32")}
ACTION = {"action": Feature(FeatureKind.ACTION, (8,), "float32")}
_PER_LAYER = 18  # matrices of hidden_dim x hidden_dim: 4 attention, 8 MLP, 6 modulation (the least)


def config_of(clip: Path, gigabytes: float) -> DitConfig:
    layers = max(1, round(gigabytes * 2**30 / (2 * _PER_LAYER * 2048**2) * 0.6))
    return DitConfig(
        input_features=INPUTS,
        output_features=ACTION,
        text_encoder_name=str(clip),
        hidden_dim=2048,
        num_layers=layers,
        num_train_timesteps=2,
        tokenizer_max_length=12,
    )


def write(folder: Path, gigabytes: float, shards: int) -> int:
    """Write a checkpoint; return the bytes of its weights."""
    config = config_of(write_clip(folder / "clip"), gigabytes)
    with Undrawn():
        shapes = {k: t.shape for k, t in built_network(PLUGIN, config).state_dict().items()}
    (folder / "config.json").write_text(encode_config(config, "0.6"))
    stats = {key: {"min": -torch.ones(8), "max": torch.ones(8)} for key in (*INPUTS, *ACTION)}
    for pipeline in default_pipelines(config, stats, stats):
        write_pipeline(pipeline, folder)
    places = {key: f"model-{number % shards}.safetensors" for number, key in enumerate(shapes)}
    for name in sorted(set(places.values())):
        held = [key for key in shapes if places[key] == name]
        made = {key: torch.full(shapes[key], 0.01, dtype=torch.bfloat16) for key in held}
        save_file(made, folder / (name if shards > 1 else "model.safetensors"))
    if shards > 1:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return sum(2 * shape.numel() for shape in shapes.values())


def memory(name: str) -> int:
    """Return a line of /proc/self/status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) * 1024


def load(folder: Path, device: str) -> None:
    """Load the checkpoint; print what it took."""
    torch.set_num_threads(2)
    torch.zeros(8, device=device).sum().item()
    before, start = memory("VmRSS"), time.perf_counter()
    parts = read_checkpoint(folder)
    policy = ChunkPolicy(replace(parts), device)
    seconds = time.perf_counter() - start
    kinds = {str(p.dtype) for p in policy.network.parameters()}
    print(json.dumps({"host": memory("VmHWM") - before, "s": seconds, "dtypes": sorted(kinds)}))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gigabytes", type=float, default=2)
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--load", type=Path)
    given = parser.parse_args()
    if given.load is not None:
        load(given.load, given.device)
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        size = write(folder, given.gigabytes, given.shards)
        said = [f"--load={folder}", f"--device={given.device}"]
        done = subprocess.run(  # noqa: S603  ourselves
            [sys.executable, __file__, *said], check=True, capture_output=True, text=True
        )
    told = json.loads(done.stdout)
    print(
        f"{size / 2**30:.2f} GiB in {given.shards} file(s), {', '.join(told['dtypes'])}: loaded"
        f" on {given.device} in {told['s']:.1f} s, {told['host'] / 2**30:.2f} GiB of host "
        f"memory at most, {told['host'] / size:.3f} x"
    )


if __name__ == "__main__":
    main()
