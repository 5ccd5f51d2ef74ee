"""Write checkpoints that LeRobot loads."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from proctor.errors import UsageError
from proctor.policies.lerobot.adapter import ADAPTER_CONFIG, ADAPTER_WEIGHTS, adapter_names
from proctor.policies.lerobot.checkpoint.checkpoint import NEWEST_LEROBOT
from proctor.policies.lerobot.checkpoint.weights import WEIGHTS_FILE
from proctor.policies.lerobot.config.config import (
    encode_config,
)
from proctor.policies.lerobot.processors.processors import (
    Pipeline,
)
from proctor.policies.runtime.chunk_policy import LoadedCheckpoint


def write_checkpoint(
    checkpoint: LoadedCheckpoint, folder: Path, for_lerobot: str = NEWEST_LEROBOT
) -> None:
    """Write ``checkpoint`` as a new folder that LeRobot ``for_lerobot`` (and newer) loads.

    The folder appears atomically, by a rename.
    """
    if folder.exists():
        raise UsageError(f"{folder} exists already", code="checkpoint.exists")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        draft = Path(scratch) / "draft"
        draft.mkdir()
        write_checkpoint_files(checkpoint, draft, for_lerobot)
        draft.rename(folder)


def write_checkpoint_files(
    checkpoint: LoadedCheckpoint,
    folder: Path,
    for_lerobot: str = NEWEST_LEROBOT,
    weights: Mapping[str, Tensor] | None = None,
) -> None:
    """Write the files of a checkpoint into a folder that is not in use yet.

    ``weights`` replaces the network's state dict.
    """
    (folder / "config.json").write_text(encode_config(checkpoint.config, for_lerobot))
    state = checkpoint.network.state_dict() if weights is None else weights
    names = {key: checkpoint.prefix + key for key in state if key not in checkpoint.network.tied}
    if checkpoint.adapter is not None:
        names = adapter_names(state, checkpoint.prefix)
        text = json.dumps(checkpoint.adapter.raw_config, indent=2, sort_keys=True)
        (folder / ADAPTER_CONFIG).write_text(text)
    tensors = {name: state[key].cpu().contiguous() for key, name in names.items()}
    file = folder / (WEIGHTS_FILE if checkpoint.adapter is None else ADAPTER_WEIGHTS)
    save_file(tensors, file, metadata={"format": "pt"} | _aliases(checkpoint, names))
    sort_metadata(file)
    for pipeline in (checkpoint.preprocessor, checkpoint.postprocessor):
        write_pipeline(pipeline, folder)


def sort_metadata(file: Path) -> None:
    """Sort the metadata of a safetensors file, which safetensors writes in random order.

    The same weights then make the same bytes.
    """
    with file.open("r+b") as opened:
        size = int.from_bytes(opened.read(8), "little")
        header = json.loads(opened.read(size))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        assert len(text) <= size, "only the order changes"
        opened.seek(8)
        opened.write(text.ljust(size))


def _aliases(checkpoint: LoadedCheckpoint, names: Mapping[str, str]) -> dict[str, str]:
    """Return the names of tied tensors that the file leaves out, mapped to those it holds."""
    return {
        checkpoint.prefix + alias: names[kept]
        for alias, kept in checkpoint.network.tied.items()
        if kept in names
    }


def write_pipeline(pipeline: Pipeline, folder: Path) -> None:
    """Write ``<name>.json``, the state files of its steps, and their tokenizers.

    LeRobot 0.6.1 loads tokenizers from the Hub by name; the copies here allow offline use.
    """
    steps = []
    for index, step in enumerate(pipeline.steps):
        named = "class" if "." in step.registry_name else "registry_name"
        entry: dict[str, Any] = {named: step.registry_name, "config": step.config()}
        state = step.state()
        if state:
            entry["state_file"] = pipeline.state_file(index)
            contiguous = {key: value.cpu().contiguous() for key, value in state.items()}
            save_file(contiguous, folder / entry["state_file"])
        steps.append(entry)
    text = json.dumps({"name": pipeline.name, "steps": steps}, indent=2)
    (folder / f"{pipeline.name}.json").write_text(text)
    for name, held in pipeline.files.items():
        file = folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(held)
