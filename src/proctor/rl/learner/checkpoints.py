"""SAC in the files of LeRobot's checkpoints, beside the policy in pretrained_model/:

algorithm/config.json                    settings, with the policy's config
algorithm/model.safetensors              critics, targets and log_alpha, without encoders
training_state/{actor,critic,temperature,discrete_critic}/
    optimizer_state.safetensors, optimizer_param_groups.json
training_state/rng_state.safetensors     for LeRobot only
training_state/training_step.json        updates done, environment steps
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import msgspec
import torch
from safetensors.torch import save_file
from torch import Tensor

from proctor.config.sections.online import OWN_SAC_SETTINGS, SacSettings
from proctor.errors import UsageError
from proctor.policies.lerobot.checkpoint.checkpoint import NEWEST_LEROBOT
from proctor.policies.lerobot.checkpoint.tensor_file import read_tensors
from proctor.policies.lerobot.checkpoint.weights import WEIGHTS_FILE
from proctor.policies.lerobot.config.config import encode_config
from proctor.rl.algorithms.flat_parameters import BETAS, EPSILON, FlatAdam
from proctor.rl.algorithms.sac import Sac
from proctor.system.files import read_regular_file
from proctor.training.checkpoints.saving import STATE
from proctor.training.checkpoints.state import (
    OPTIMIZER_FILE,
    RNG_FILE,
    STEP_FILE,
    read_moments,
    write_moments,
)
from proctor.training.rng import RngStreams

ALGORITHM = "algorithm"


class TrainingStep(msgspec.Struct, frozen=True):
    """The content of training_step.json."""

    step: Annotated[int, msgspec.Meta(ge=0, le=10**12)]
    """Updates done."""
    interaction_step: Annotated[int, msgspec.Meta(ge=0, le=10**12)] = 0
    """Environment steps of the actors."""


def write_sac(sac: Sac, checkpoint: Path, interaction_step: int, seed: int) -> None:
    """Write the algorithm and its training state into a checkpoint's folder.

    Raises:
        OSError, SafetensorError: the files cannot be written.
    """
    folder = checkpoint / ALGORITHM
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(_config_of(sac), indent=4))
    tensors = {name: value.cpu().contiguous() for name, value in sac.algorithm_tensors()}
    save_file(tensors, folder / WEIGHTS_FILE)
    state = checkpoint / STATE
    state.mkdir(exist_ok=True)
    for name, optimizer in sac.optimizers.items():
        (state / name).mkdir()
        weights = _optimized(sac, name)
        group = _group_of(optimizer, len(weights))
        write_moments(state / name, [group], _moments_of(optimizer, weights))
    save_file(RngStreams(seed).lerobot_rng_state(sac.step), state / RNG_FILE)
    step = TrainingStep(sac.step, interaction_step)
    (state / STEP_FILE).write_text(json.dumps(msgspec.to_builtins(step), indent=4))


def read_sac(sac: Sac, checkpoint: Path) -> TrainingStep:
    """Restore the algorithm from a checkpoint, which LeRobot may have written.

    The policy in pretrained_model/ is not read here. LeRobot's files hold no random generator for
    the updates, so the generator stays as it is.
    """
    file = checkpoint / ALGORITHM / WEIGHTS_FILE
    found = read_tensors(file)
    for name, tensor in sac.algorithm_tensors():
        _copy(tensor, found, name, file)
    for name, optimizer in sac.optimizers.items():
        folder = checkpoint / STATE / name
        weights = _optimized(sac, name)
        _, state = read_moments(folder, [_group_of(optimizer, len(weights))])
        _load_moments(optimizer, weights, state, folder / OPTIMIZER_FILE)
    step = _read_step(checkpoint / STATE / STEP_FILE)
    sac.restore_step(step.step)
    return step


def _read_step(file: Path) -> TrainingStep:
    try:
        return msgspec.json.decode(read_regular_file(file), type=TrainingStep)
    except OSError as error:
        raise UsageError(
            f"cannot read {file}: {error.strerror}", code="checkpoint.unreadable"
        ) from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise UsageError(
            f"{file} is not a valid training state: {error}", code="checkpoint.invalid-state"
        ) from None


def _config_of(sac: Sac) -> dict[str, Any]:
    values = msgspec.to_builtins(sac.settings)
    kept = {f.name: values[f.name] for f in fields(SacSettings) if f.name not in OWN_SAC_SETTINGS}
    return kept | {"policy_config": json.loads(encode_config(sac.network.config, NEWEST_LEROBOT))}


# ── optimisers ────────────────────────────────────────────────────────────────────────────────


def _optimized(sac: Sac, name: str) -> list[Tensor]:
    """Return the weights of an optimiser in LeRobot's order, frozen ones too."""
    network = sac.network
    if name == "temperature":
        return [sac.log_alpha]
    if name == "critic":
        heads = [tensor for _, tensor in sac.critics.named_heads()]
        return [*network.encoder_critic.parameters(), *heads]
    if name == "discrete_critic":
        assert sac.gripper is not None
        return list(sac.gripper.parameters())
    shared = network.config.shared_encoder
    named = network.actor.named_parameters()
    return [p for key, p in named if not (shared and key.startswith("encoder."))]


def _moment(buffer: Tensor, optimizer: FlatAdam, weight: Tensor) -> Tensor | None:
    """Return the view of a moment buffer for a weight; None for a frozen weight."""
    values = optimizer.values
    if weight.untyped_storage().data_ptr() != values.untyped_storage().data_ptr():
        return None
    start = weight.storage_offset() - values.storage_offset()
    return buffer.as_strided(weight.shape, weight.stride(), start)


def _moments_of(optimizer: FlatAdam, weights: list[Tensor]) -> dict[int, dict[str, Tensor]]:
    """Return the moments by the weight's number; before the first step there are none."""
    if not optimizer.count:
        return {}
    state: dict[int, dict[str, Tensor]] = {}
    for number, weight in enumerate(weights):
        mean = _moment(optimizer.mean, optimizer, weight)
        square = _moment(optimizer.square, optimizer, weight)
        if mean is not None and square is not None:
            parts = {"step": optimizer.count, "exp_avg": mean, "exp_avg_sq": square}
            state[number] = {name: part.clone() for name, part in parts.items()}
    return state


def _load_moments(
    optimizer: FlatAdam,
    weights: list[Tensor],
    state: Mapping[int, Mapping[str, Tensor]],
    file: Path,
) -> None:
    buffers = {"exp_avg": optimizer.mean, "exp_avg_sq": optimizer.square}
    for buffer in (*buffers.values(), optimizer.count):
        buffer.zero_()
    for number, weight in enumerate(weights if state else []):
        for name, buffer in buffers.items():
            moment = _moment(buffer, optimizer, weight)
            if moment is not None:
                found = state.get(number, {})
                _copy(moment, found, name, file)
                _copy(optimizer.count, found, "step", file)


def _copy(tensor: Tensor, found: Mapping[str, Tensor], name: str, file: Path) -> None:
    if name not in found or found[name].shape != tensor.shape:
        shape = list(found[name].shape) if name in found else "missing"
        raise UsageError(
            f"{file} belongs to another network: {name} is {shape}, expected {list(tensor.shape)}",
            code="checkpoint.shape-mismatch",
        )
    with torch.no_grad():
        tensor.copy_(found[name])


def _group_of(optimizer: FlatAdam, weights: int) -> dict[str, Any]:
    """Return Adam's parameter group as torch writes it."""
    return {
        "lr": optimizer.rate,
        "betas": list(BETAS),
        "eps": EPSILON,
        "weight_decay": 0,
        "amsgrad": False,
        "maximize": False,
        "foreach": None,
        "capturable": False,
        "differentiable": False,
        "fused": None,
        "decoupled_weight_decay": False,
        "params": list(range(weights)),
    }
