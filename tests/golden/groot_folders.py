"""Makes the tiny base model and checkpoints of data/groot_run whole again: paths and weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from recipes import GOLDEN, hashed_weight
from safetensors.torch import save_file

from proctor.policies.groot.config import GrootN17Config
from proctor.policies.groot.network.network import GrootN17
from proctor.policies.lerobot.config.config import decode_config

RUN = GOLDEN / "groot_run"
WORDS = ["Push the red_block!", "open it", "pick up the red cube and put it on the plate please"]
STEPS, CHUNK, ACTIONS, STATES, MOST = 5, 6, 5, 5, 8


def fill_named(network: torch.nn.Module) -> None:
    """Give every parameter its recipe value; tied ones by their first name."""
    for name, value in network.named_parameters():
        value.data.copy_(hashed_weight(name, value.shape))


def write_base(folder: Path) -> Path:
    """Write the base model in NVIDIA's layout, with weights, and its backbone; return the base."""
    for name in ("base", "backbone"):
        shutil.copytree(RUN / name, folder / name)
    config = folder / "base" / "config.json"
    config.write_text(config.read_text().replace("./backbone", str(folder / "backbone")))
    network = network_of("new", folder / "base")
    tensors = {k: v for k, v in network.state_dict().items() if k not in network.tied.values()}
    save_file(tensors, folder / "base" / "model.safetensors")
    return folder / "base"


def stated(name: str, base: Path) -> dict:
    text = (RUN / name / "config.json").read_text()
    told: dict = json.loads(text.replace("./base", str(base)))
    return told


def network_of(name: str, base: Path, **changes) -> GrootN17:
    network = GrootN17(decode_config(stated(name, base) | changes, GrootN17Config, "golden"))
    fill_named(network)
    return network


def write_checkpoint_of(name: str, base: Path, folder: Path) -> Path:
    """Write LeRobot's checkpoint ``name`` with weights and tokenizer."""
    shutil.copytree(RUN / name, folder)
    for file in folder.glob("*.json"):
        text = file.read_text().replace("./base", str(base))
        file.write_text(text.replace("./backbone", str(base.parent / "backbone")))
    network = network_of(name, base)
    held = {k: v for k, v in network.state_dict().items() if k not in network.tied}
    tensors = {f"_groot_model.{key}": value for key, value in held.items()}
    save_file(tensors, folder / "model.safetensors")
    return folder
