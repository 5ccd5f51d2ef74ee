"""Sharded weights (torch's FSDP2): each process holds a shard of every tensor.

The full weights of a block exist only while it computes. Files always hold full tensors, so a
checkpoint does not depend on the number of processes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from proctor.errors import UsageError, strip_control_codes


def shard(loss: nn.Module, device: torch.device, replicas: int, parts: int) -> None:
    """Shard the weights of ``loss`` over ``parts`` processes, in each of the ``replicas``."""
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
    """Return the modules to shard separately: members of module lists, inner ones first."""
    found = [
        member
        for each in module.modules()
        if isinstance(each, nn.ModuleList)
        for member in each
        if not isinstance(member, nn.ModuleList) and any(True for _ in member.parameters())
    ]
    return list(dict.fromkeys(reversed(found)))


def full_tensor(value: Tensor) -> Tensor:
    """Return the full tensor; all processes must call this."""
    gather = getattr(value, "full_tensor", None)
    return value if gather is None else gather()


def local_shard(value: Tensor) -> Tensor:
    """Return this process's shard of a tensor, as a view."""
    local = getattr(value, "to_local", None)
    return value if local is None else local()


def shard_like(value: Tensor, like: Tensor) -> Tensor:
    """Shard a full tensor like ``like``, if that is sharded."""
    if not hasattr(like, "full_tensor") or not value.dim():
        return value
    from torch.distributed.tensor import distribute_tensor

    mesh, places = like.device_mesh, like.placements  # type: ignore[attr-defined]
    return distribute_tensor(value.to(like.device), mesh, places, src_data_rank=None)


def gather_state(values: Any, *, keep: bool) -> Any:
    """Gather the sharded tensors in nested dicts and lists; None for them unless ``keep``.

    All processes must call this. Other values are returned unchanged.
    """
    if isinstance(values, dict):
        return {key: gather_state(value, keep=keep) for key, value in values.items()}
    if isinstance(values, list):
        return [gather_state(value, keep=keep) for value in values]
    if not isinstance(values, Tensor) or not hasattr(values, "full_tensor"):
        return values
    found = full_tensor(values)
    return found.cpu() if keep else None
