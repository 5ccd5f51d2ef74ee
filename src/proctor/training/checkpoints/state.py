"""The state of a training beside its weights, in LeRobot's files: training_state/

training_step.json                                         steps done, batch size
optimizer_state.safetensors, optimizer_param_groups.json   moments by parameter index;
                                                           multi_adam: one folder per group
scheduler_state.json                                       with a learning-rate schedule
rng_state.safetensors                                      for LeRobot only, see rng.py
ema_state.pt                                               with EMA
gradient_guard.json                                        with --optimizer.grad_skip_factor
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from proctor.errors import UsageError
from proctor.policies.lerobot.checkpoint.tensor_file import read_tensors
from proctor.system.files import read_regular_file
from proctor.training.data.sharding import gather_state, shard_like
from proctor.training.optim.ema import WeightAverage
from proctor.training.optim.gradient_guard import GradientGuard

STEP_FILE = "training_step.json"
OPTIMIZER_FILE, GROUPS_FILE = "optimizer_state.safetensors", "optimizer_param_groups.json"
SCHEDULER_FILE, RNG_FILE, EMA_FILE, GUARD_FILE = (
    "scheduler_state.json",
    "rng_state.safetensors",
    "ema_state.pt",
    "gradient_guard.json",
)


@dataclass
class TrainerState:
    """The state that changes with every step, beside the weights."""

    optimizer: torch.optim.Optimizer
    scheduler: LambdaLR | None
    average: WeightAverage | None
    separate: bool = False
    """Whether files hold one optimiser per parameter group."""
    guard: GradientGuard | None = None
    """Decides which updates are skipped."""
    step: int = 0
    """Completed steps."""
    processes: int | None = None
    """Number of processes of the resumed checkpoint; None if unknown."""

    def snapshot(self, *, keep: bool = True) -> Snapshot:
        """Return the state to write, with sharded tensors gathered if ``keep``.

        With sharded weights all processes must call this.
        """
        scheduler, average = self.scheduler, self.average
        return Snapshot(
            self.step,
            gather_state(self.optimizer.state_dict(), keep=keep),
            None if scheduler is None else scheduler.state_dict(),
            None if average is None else gather_state(average.state(), keep=keep),
            self.separate,
            None if self.guard is None else self.guard.state(),
        )


@dataclass(frozen=True)
class Snapshot:
    """A ``TrainerState`` at one step, as it is written to files."""

    step: int
    optimizer: dict[str, Any]
    scheduler: dict[str, Any] | None
    average: dict[str, Any] | None
    separate: bool
    guard: dict[str, float] | None = None


@dataclass(frozen=True)
class Batching:
    """The batches of an update, by LeRobot's names."""

    batch_size: int
    grad_accum_steps: int = 1
    num_processes: int = 1
    dp_shard: int = 1
    """Processes that share one copy of the weights."""

    def as_dict(self) -> dict[str, Any]:
        """Return the fields of training_step.json."""
        world = self.num_processes  # dp_world_size is LeRobot 0.6.1's name
        degrees = {"dp_replicate": world // self.dp_shard, "dp_shard": self.dp_shard}
        return {
            "dp_world_size": world,
            "num_processes": world,
            "batch_size": self.batch_size,
            "grad_accum_steps": self.grad_accum_steps,
            "parallelism": degrees | {"ring_degree": 1, "ulysses_degree": 1},
        }


@dataclass(frozen=True)
class _Step:
    step: Annotated[int, msgspec.Meta(ge=0, le=10**12)]
    num_processes: Annotated[int, msgspec.Meta(ge=1, le=10**6)] | None = None


def write_state(
    folder: Path, snapshot: Snapshot, generators: dict[str, Tensor], batching: Batching
) -> None:
    """Write the files.

    Raises:
        OSError, SafetensorError: the files cannot be written.
    """
    folder.mkdir()
    _write_json(folder / STEP_FILE, {"step": snapshot.step, **batching.as_dict()})
    _write_optimizer(folder, snapshot)
    save_file(generators, folder / RNG_FILE)
    if snapshot.scheduler is not None:
        _write_json(folder / SCHEDULER_FILE, snapshot.scheduler)
    if snapshot.guard is not None:
        _write_json(folder / GUARD_FILE, snapshot.guard)
    if snapshot.average is not None:
        weights = [weight.cpu() for weight in snapshot.average["shadow_params"]]
        torch.save(snapshot.average | {"shadow_params": weights}, folder / EMA_FILE)


def _write_optimizer(folder: Path, snapshot: Snapshot) -> None:
    groups, state = snapshot.optimizer["param_groups"], snapshot.optimizer["state"]
    if not snapshot.separate:
        write_moments(folder, groups, state)
        return
    for group in groups:
        own, numbers = dict(group), group["params"]
        place = folder / own.pop("name")
        place.mkdir()
        own["params"] = list(range(len(numbers)))
        moments = {i: state[number] for i, number in enumerate(numbers) if number in state}
        write_moments(place, [own], moments)


def write_moments(folder: Path, groups: list[dict[str, Any]], state: dict[int, Any]) -> None:
    """Write an optimiser's parameter groups, and the moments of its weights by number."""
    # LeRobot refuses a file whose implementation flags differ from its own.
    plain: dict[str, Any] = {"fused": None, "foreach": None}
    tensors = {
        f"state/{number}/{name}": value.detach().cpu().contiguous()
        for number, values in state.items()
        for name, value in values.items()
        if isinstance(value, Tensor)
    }
    save_file(tensors, folder / OPTIMIZER_FILE)
    written = [group | {k: v for k, v in plain.items() if k in group} for group in groups]
    _write_json(folder / GROUPS_FILE, written)


def _write_json(file: Path, value: Any) -> None:
    file.write_text(json.dumps(value, indent=4))


def _read_step(folder: Path) -> _Step:
    found: _Step = _read(folder / STEP_FILE, _Step)
    return found


def read_step(folder: Path) -> int:
    """Return the completed steps of a checkpoint's training state."""
    return _read_step(folder).step


def read_state(
    folder: Path, trainer_state: TrainerState, given: Collection[str] = frozenset()
) -> None:
    """Load the files into ``trainer_state``; they may be written by LeRobot.

    ``given`` are hyperparameters of the optimiser that the settings define. The files define all
    others.
    """
    _load_optimizer(folder, trainer_state, given)
    found = _read_step(folder)
    if trainer_state.scheduler is not None:
        _load_scheduler(folder, trainer_state.scheduler, found.step)
    if trainer_state.guard is not None and (folder / GUARD_FILE).exists():
        file = folder / GUARD_FILE
        trainer_state.guard.load(_read(file, dict[str, Any]), str(file))
    if trainer_state.average is not None:
        file = folder / EMA_FILE
        try:  # weights_only: torch refuses other pickles
            state = torch.load(file, map_location="cpu", weights_only=True)
        except (OSError, RuntimeError, pickle.UnpicklingError, EOFError) as error:
            reason = str(error).partition("\n")[0]
            raise UsageError(
                f"the EMA weights in {file} cannot be read: {reason}", code="checkpoint.unreadable"
            ) from None
        trainer_state.average.load(state, str(file))
    trainer_state.step, trainer_state.processes = found.step, found.num_processes


def _load_scheduler(folder: Path, scheduler: LambdaLR, step: int) -> None:
    """Load the schedule's state; a training without a schedule has no file of it.

    The rates are then computed from the current schedule, which the settings may have changed. The
    files hold those of the old one: 0 at the end of a cosine.
    """
    file, groups = folder / SCHEDULER_FILE, scheduler.optimizer.param_groups
    try:
        if file.exists():
            scheduler.load_state_dict(_read(file, dict[str, Any]))
        else:
            scheduler.last_epoch = step
        for group in groups:
            group.setdefault("initial_lr", group["lr"])
        scheduler.base_lrs = [group["initial_lr"] for group in groups]
        for group, at in zip(groups, scheduler.lr_lambdas, strict=True):
            group["lr"] = group["initial_lr"] * at(scheduler.last_epoch)
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"{file} is not a valid training state: {error!r}", code="checkpoint.invalid-state"
        ) from None


def _load_optimizer(folder: Path, trainer_state: TrainerState, given: Collection[str]) -> None:
    optimizer = trainer_state.optimizer
    ours = optimizer.state_dict()["param_groups"]
    read = _read_separate if trainer_state.separate else read_moments
    groups, state = read(folder, ours)
    # Implementation flags are this machine's.
    kept = {"fused", "foreach", "capturable", *given} | ({"initial_lr"} if "lr" in given else set())
    for group, own in zip(groups, ours, strict=True):
        group |= {name: own[name] for name in kept & own.keys()}
        if "betas" in group:
            group["betas"] = tuple(group["betas"])
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    for number, weight in enumerate(weights):
        values = state.get(number, {})
        state[number] = {name: shard_like(value, weight) for name, value in values.items()}
    try:
        optimizer.load_state_dict({"state": state, "param_groups": groups})
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{folder / GROUPS_FILE}: {error}", code="checkpoint.invalid-state"
        ) from None
    _check_shapes(optimizer, folder / OPTIMIZER_FILE)


Moments = tuple[list[dict[str, Any]], dict[int, dict[str, Tensor]]]
"""Parameter groups, and moments by the number of their weight."""


def read_moments(folder: Path, ours: list[dict[str, Any]]) -> Moments:
    """Read the groups, which must match ``ours`` in size, and the moments of their weights."""
    file = folder / GROUPS_FILE
    groups = _read(file, list[dict[str, Any]])
    if [group.get("params") for group in groups] != [group["params"] for group in ours]:
        sizes = [len(group["params"]) for group in ours]
        raise UsageError(
            f"{file} belongs to another network; this one has groups of {sizes} tensors",
            code="checkpoint.shape-mismatch",
        )
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in read_tensors(folder / OPTIMIZER_FILE).items():
        _, number, name = key.split("/")
        state.setdefault(int(number), {})[name] = value
    return groups, state


def _read_separate(folder: Path, ours: list[dict[str, Any]]) -> Moments:
    """Read each group from its own folder, where its weights are numbered from 0."""
    groups: list[dict[str, Any]] = []
    state: dict[int, dict[str, Tensor]] = {}
    for own in ours:
        numbers = own["params"]
        (group,), moments = read_moments(
            folder / own["name"], [{"params": list(range(len(numbers)))}]
        )
        groups.append(group | {"params": numbers, "name": own["name"]})
        state |= {numbers[i]: values for i, values in moments.items()}
    return groups, state


def _check_shapes(optimizer: torch.optim.Optimizer, file: Path) -> None:
    for parameter, values in optimizer.state.items():
        for name, value in values.items():
            if isinstance(value, Tensor) and value.dim() and value.shape != parameter.shape:
                raise UsageError(
                    f"{file} belongs to another network: {name} has shape {list(value.shape)}, the "
                    f"weights have {list(parameter.shape)}",
                    code="checkpoint.shape-mismatch",
                )


def _read(file: Path, kind: Any) -> Any:
    try:
        return msgspec.json.decode(read_regular_file(file), type=kind)
    except OSError as error:
        raise UsageError(
            f"cannot read {file}: {error.strerror}", code="checkpoint.unreadable"
        ) from None
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise UsageError(
            f"{file} is not a valid training state: {error}", code="checkpoint.invalid-state"
        ) from None
