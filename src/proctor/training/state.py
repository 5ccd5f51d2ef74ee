"""What a run needs to go on, beside its weights, in LeRobot's files: training_state/

training_step.json                                         steps done, batch size
optimizer_state.safetensors, optimizer_param_groups.json   moments, by the parameters' numbers
scheduler_state.json                                       where there is a schedule
rng_state.safetensors                                      for LeRobot; we draw from (seed, step)
ema_state.pt                                               where weights are averaged
"""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from proctor.errors import UsageError
from proctor.machine.files import read_plain
from proctor.policies.lerobot.weights import read_tensors
from proctor.training.ema import Average

STEP_FILE = "training_step.json"
OPTIMIZER_FILE, GROUPS_FILE = "optimizer_state.safetensors", "optimizer_param_groups.json"
SCHEDULER_FILE, RNG_FILE, EMA_FILE = (
    "scheduler_state.json",
    "rng_state.safetensors",
    "ema_state.pt",
)


@dataclass
class Learning:
    """All that changes from step to step, beside the weights themselves."""

    optimizer: torch.optim.Optimizer
    scheduler: LambdaLR | None
    average: Average | None
    step: int = 0
    """Batches that were learnt from."""


@dataclass(frozen=True)
class _Step:
    step: Annotated[int, msgspec.Meta(ge=0, le=10**12)]


def write_state(
    folder: Path,
    learning: Learning,
    generators: dict[str, Tensor],
    batch: dict[str, int],
) -> None:
    """Write the files; ``batch`` states batch_size, grad_accum_steps, num_processes (1).

    Raises:
        OSError, SafetensorError: the disk does not take them.
    """
    folder.mkdir()
    world = batch.get("num_processes", 1)  # LeRobot 0.6.1 knows it by this name
    spread = {"dp_replicate": world, "dp_shard": 1, "ring_degree": 1, "ulysses_degree": 1}
    step = {"step": learning.step, "dp_world_size": world, **batch, "parallelism": spread}
    _write_json(folder / STEP_FILE, step)
    saved = learning.optimizer.state_dict()
    tensors = {
        f"state/{number}/{name}": value.detach().cpu().contiguous()
        for number, values in saved["state"].items()
        for name, value in values.items()
        if isinstance(value, Tensor)
    }
    save_file(tensors, folder / OPTIMIZER_FILE)
    _write_json(folder / GROUPS_FILE, saved["param_groups"])
    save_file(generators, folder / RNG_FILE)
    if learning.scheduler is not None:
        _write_json(folder / SCHEDULER_FILE, learning.scheduler.state_dict())
    if learning.average is not None:
        torch.save(learning.average.state(), folder / EMA_FILE)


def _write_json(file: Path, value: Any) -> None:
    file.write_text(json.dumps(value, indent=4))


def read_step(folder: Path) -> int:
    """Return how many steps the run of ``folder`` had done.

    Raises:
        UsageError: it does not say.
    """
    found: _Step = _read(folder / STEP_FILE, _Step)
    return found.step


def read_state(folder: Path, learning: Learning) -> None:
    """Bring ``learning`` to where the files left off; they may be LeRobot's.

    Raises:
        UsageError: a file is missing, damaged, or of another network or optimiser.
    """
    _load_optimizer(folder, learning.optimizer)
    if learning.scheduler is not None:
        learning.scheduler.load_state_dict(_read(folder / SCHEDULER_FILE, dict[str, Any]))
    if learning.average is not None:
        file = folder / EMA_FILE
        try:  # tensors and numbers only: a pickle of anything else is refused by torch
            state = torch.load(file, map_location="cpu", weights_only=True)
        except (OSError, RuntimeError, pickle.UnpicklingError, EOFError) as error:
            reason = str(error).partition("\n")[0]
            raise UsageError(f"{file} holds no averages that can be read: {reason}") from None
        learning.average.load(state, str(file))
    learning.step = read_step(folder)


def _load_optimizer(folder: Path, optimizer: torch.optim.Optimizer) -> None:
    file = folder / GROUPS_FILE
    groups = _read(file, list[dict[str, Any]])
    ours = optimizer.state_dict()["param_groups"]
    if [group.get("params") for group in groups] != [group["params"] for group in ours]:
        sizes = [len(group["params"]) for group in ours]
        raise UsageError(f"{file} is of another network: this one has groups of {sizes} tensors")
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in read_tensors(folder / OPTIMIZER_FILE).items():
        _, number, name = key.split("/")
        state.setdefault(int(number), {})[name] = value
    # How the update is computed is this machine's business; what is computed, the file's.
    for group, own in zip(groups, ours, strict=True):
        group |= {name: own[name] for name in ("fused", "foreach", "capturable") if name in own}
        if "betas" in group:
            group["betas"] = tuple(group["betas"])
    try:
        optimizer.load_state_dict({"state": state, "param_groups": groups})
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{file}: {error}") from None
    _check_shapes(optimizer, folder / OPTIMIZER_FILE)


def _check_shapes(optimizer: torch.optim.Optimizer, file: Path) -> None:
    for parameter, values in optimizer.state.items():
        for name, value in values.items():
            if isinstance(value, Tensor) and value.dim() and value.shape != parameter.shape:
                raise UsageError(
                    f"{file} is of another network: {name} has shape {list(value.shape)} where the "
                    f"weights have {list(parameter.shape)}"
                )


def _read(file: Path, kind: Any) -> Any:
    try:
        return msgspec.json.decode(read_plain(file), type=kind)
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from None
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise UsageError(f"{file} is not what a training writes: {error}") from None
