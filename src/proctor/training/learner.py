"""A network's loss as a training computes it: compiled or not, by one process or by several."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from proctor.config.training import TrainConfig
from proctor.config.training_sections import CompileSettings
from proctor.errors import TrainingError
from proctor.policies.runtime.compiled import (
    INDUCTOR,
    compile_parts,
    compiler_errors_in_one_line,
    require_compiler,
)
from proctor.policies.runtime.network import Network
from proctor.training.distributed import DistributedContext
from proctor.training.sharding import shard

_FLAG = "--accelerator.compile.enabled"


class Learner:
    """A network's loss; its gradients are averaged over the processes as they come to be."""

    def __init__(
        self,
        network: Network,
        config: TrainConfig,
        distributed: DistributedContext,
        device: torch.device,
    ) -> None:
        """Make the loss ready; weights that are to be spread over processes are from here on.

        Raises:
            UsageError: this torch cannot do what is asked for.
        """
        self._loss: nn.Module = _Loss(network)
        how = config.accelerator.compile
        self._compiled = how.enabled
        if how.enabled:
            parts = network.hot_parts() if how.regional else [self._loss]
            compile_parts(parts, backend=how.backend, mode=how.mode)
        shares = config.parallelism.dp_shard
        self.sharded = shares > 1
        if self.sharded:
            shard(self._loss, device, distributed.share.world_size // shares, shares)
        elif not distributed.is_single_process:
            self._loss = _averaged(self._loss, device)

    def __call__(
        self, inputs: dict[str, Tensor], draws: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of this process's samples, and its parts.

        Raises:
            TrainingError: torch.compile cannot compile the network.
        """
        with compiler_errors_in_one_line(_FLAG, TrainingError) if self._compiled else nullcontext():
            found: tuple[Tensor, dict[str, Tensor]] = self._loss(inputs, draws)
        return found

    @contextmanager
    def _synchronised(self, synchronised: bool) -> Iterator[None]:
        self._loss.set_requires_gradient_sync(synchronised)  # type: ignore[operator]
        yield

    def gradient_sync(self, *, last: bool) -> AbstractContextManager[None]:
        """Return where a batch is learnt from; gradients are averaged in an update's last only."""
        if self.sharded:
            return self._synchronised(last)
        if last or not isinstance(self._loss, DistributedDataParallel):
            return nullcontext()
        return self._loss.no_sync()


class _Loss(nn.Module):
    """A network whose forward is its loss: DDP and FSDP know no other method."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(
        self, inputs: dict[str, Tensor], draws: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        return self.network.loss(inputs, draws)


def _averaged(loss: nn.Module, device: torch.device) -> nn.Module:
    """Return a loss whose gradients are averaged over the processes.

    A network may leave weights alone, as LeRobot allows, so unused ones are looked for in every
    step. Where none are, too: else DDP puts gradients together anew after its first step, and of
    three processes or more a resumed training, whose first step is another, adds them up in another
    order. A weight that no loss uses keeps it from warning that it looks in vain.
    """
    loss.register_parameter("in_vain", nn.Parameter(torch.zeros((), device=device)))
    return DistributedDataParallel(loss, find_unused_parameters=True)


def check_compiler(how: CompileSettings, device: torch.device) -> None:
    """Refuse to compile where nothing can.

    Raises:
        UsageError: what is missing.
    """
    if how.enabled and how.backend == INDUCTOR:
        require_compiler(_FLAG, device)
