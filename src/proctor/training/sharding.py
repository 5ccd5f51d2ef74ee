"""Weights that are spread over processes (torch's FSDP2): each holds a part of every tensor.

A block's whole weights are there only while it computes. Files hold whole tensors always, so a
checkpoint does not tell how many processes made it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from proctor.errors import UsageError, strip_control_codes


def shard(loss: nn.Module, device: torch.device, replicas: int, parts: int) -> None:
    """Spread the weights of ``loss`` over ``parts`` processes; as often as there are replicas.

    Raises:
        UsageError: this torch cannot.
    """
    try:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
    except ImportError as error:
        raise UsageError(
            f"--parallelism.dp_shard needs FSDP2, which torch {torch.__version__} cannot import: "
            f"{strip_control_codes(str(error))}; FSDP2 is in torch 2.6 and newer, in builds with "
            "distributed support",
            code="training.sharding-unavailable",
        ) from None
    sizes = (parts,) if replicas == 1 else (replicas, parts)
    names = ("shard",) if replicas == 1 else ("replicate", "shard")
    mesh = init_device_mesh(device.type, sizes, mesh_dim_names=names)
    for unit in _units(loss):
        fully_shard(unit, mesh=mesh)
    fully_shard(loss, mesh=mesh)


def _units(module: nn.Module) -> list[nn.Module]:
    """Return what is gathered at once: the members of lists of modules, inner ones first."""
    found = [
        member
        for each in module.modules()
        if isinstance(each, nn.ModuleList)
        for member in each
        if not isinstance(member, nn.ModuleList) and any(True for _ in member.parameters())
    ]
    return list(dict.fromkeys(reversed(found)))


def full_tensor(value: Tensor) -> Tensor:
    """Return all of a tensor, for which all processes must ask."""
    gather = getattr(value, "full_tensor", None)
    return value if gather is None else gather()


def local_shard(value: Tensor) -> Tensor:
    """Return what this process holds of a tensor: the same memory."""
    local = getattr(value, "to_local", None)
    return value if local is None else local()


def shard_like(value: Tensor, like: Tensor) -> Tensor:
    """Return a whole tensor as ``like`` is spread, if it is."""
    if not hasattr(like, "full_tensor") or not value.dim():
        return value
    from torch.distributed.tensor import distribute_tensor

    mesh, places = like.device_mesh, like.placements  # type: ignore[attr-defined]
    return distribute_tensor(value.to(like.device), mesh, places, src_data_rank=None)


def gather_state(values: Any, *, keep: bool) -> Any:
    """Return tensors, in dicts and lists, whole; None for those that are not to be kept here.

    All processes must ask for it. What is not spread is returned as it is.
    """
    if isinstance(values, dict):
        return {key: gather_state(value, keep=keep) for key, value in values.items()}
    if isinstance(values, list):
        return [gather_state(value, keep=keep) for value in values]
    if not isinstance(values, Tensor) or not hasattr(values, "full_tensor"):
        return values
    found = full_tensor(values)
    return found.cpu() if keep else None
