"""The loss of a network in training: optionally compiled, data-parallel or sharded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from proctor.config.sections.training import CompileSettings
from proctor.config.training import TrainConfig
from proctor.errors import TrainingError
from proctor.policies.runtime.compiled import (
    INDUCTOR,
    compile_parts,
    require_compiler,
    summarize_compiler_errors,
    uncompiled,
)
from proctor.policies.runtime.network import Network
from proctor.training.data.loading import n_rows
from proctor.training.data.sharding import shard
from proctor.training.distributed import DistributedContext

_FLAG = "--accelerator.compile.enabled"


class Learner:
    """Computes a network's loss; gradients are averaged over processes during backward."""

    def __init__(
        self,
        network: Network,
        config: TrainConfig,
        distributed: DistributedContext,
        device: torch.device,
        batch_size: int,
    ) -> None:
        """Compile the loss and shard the weights, as the settings say.

        Only batches of ``batch_size`` are compiled: a second compilation for the last, smaller
        batch of an epoch would cost more than it saves.
        """
        self._network, self._batch_size = network, batch_size
        self._loss: nn.Module = _Loss(network)
        how = config.accelerator.compile
        self.is_compiled = how.enabled
        if how.enabled:
            parts = network.compiled_modules() if how.regional else [self._loss]
            compile_parts(parts, backend=how.backend, mode=how.mode)
        shares = config.parallelism.dp_shard
        self.sharded = shares > 1
        if self.sharded:
            shard(self._loss, device, distributed.share.world_size // shares, shares)
        elif not distributed.is_single_process:
            self._loss = _data_parallel(self._loss, device)

    def __call__(
        self, inputs: dict[str, Tensor], draws: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of this process's samples, and the parts of the loss."""
        training = self._network.training
        compiled = self.is_compiled and training and n_rows(inputs) == self._batch_size
        loss = self._loss if training or self.sharded else self._network.loss
        with nullcontext() if compiled or not self.is_compiled else uncompiled():
            found: tuple[Tensor, dict[str, Tensor]] = loss(inputs, draws)
        return found

    def compiler_errors(self) -> AbstractContextManager[None]:
        """Return the context of forward and backward pass, in which torch.compile may fail."""
        if not self.is_compiled:
            return nullcontext()
        return summarize_compiler_errors(_FLAG, TrainingError)

    @contextmanager
    def _synchronised(self, synchronised: bool) -> Iterator[None]:
        self._loss.set_requires_gradient_sync(synchronised)  # type: ignore[operator]
        yield

    def gradient_sync(self, *, last: bool) -> AbstractContextManager[None]:
        """Return the context for one batch; gradients are synchronised only in an update's last."""
        if self.sharded:
            return self._synchronised(last)
        if last or not isinstance(self._loss, DistributedDataParallel):
            return nullcontext()
        return self._loss.no_sync()


class _Loss(nn.Module):
    """A module whose forward is the loss, since DDP and FSDP only support forward."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(
        self, inputs: dict[str, Tensor], draws: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        return self.network.loss(inputs, draws)


def _data_parallel(loss: nn.Module, device: torch.device) -> nn.Module:
    """Return a loss whose gradients DDP averages over the processes.

    LeRobot allows unused parameters, so DDP searches for them in every step. This is also needed
    without any: DDP would else rebuild its buckets after the first step, and with three or more
    processes a resumed training would sum gradients in another order. An unused parameter avoids
    DDP's warning about a needless search.
    """
    loss.register_parameter("in_vain", nn.Parameter(torch.zeros((), device=device)))
    return DistributedDataParallel(loss, find_unused_parameters=True)


def check_compiler(how: CompileSettings, device: torch.device) -> None:
    """Check that the compiler backend works on this machine."""
    if how.enabled and how.backend == INDUCTOR:
        require_compiler(_FLAG, device)
