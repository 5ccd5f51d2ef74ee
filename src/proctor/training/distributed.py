"""Several processes that train one policy together, as torchrun starts them.

    torchrun --nproc_per_node=4 -m proctor.cli train ...

Each learns from its own share of every step's samples; gradients are averaged while they are
computed (learner.py). The first process alone writes: checkpoints, log, evaluations.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import torch
from torch import Tensor
from torch import distributed as dist

from proctor.config.training_sections import ParallelismSettings
from proctor.errors import TrainingError, UsageError, summarize_traceback
from proctor.training.sampler import ProcessShare

_PATIENCE = timedelta(hours=6)
"""While one process downloads, decodes or validates, the others wait; torchrun ends them all where
one is gone, so that nothing but a hang takes this long."""
_GONE = ("closed by peer", "reset by peer", "connection refused", "broken pipe")


@dataclass(frozen=True)
class DistributedContext:
    """Which of the processes this one is; the only one, where torchrun started none."""

    share: ProcessShare = field(default_factory=ProcessShare)
    local_rank: int = 0
    """Its number on this machine, which is its GPU's too."""

    @property
    def is_single_process(self) -> bool:
        """Whether there are no others."""
        return self.share.world_size == 1

    @property
    def is_main_process(self) -> bool:
        """Whether this is the process that writes."""
        return self.share.rank == 0

    def device(self, picked: torch.device) -> torch.device:
        """Return this process's device of the kind that was ``picked`` for all.

        Raises:
            UsageError: there are fewer GPUs than processes, or they cannot work together.
        """
        if self.is_single_process or picked.type == "cpu":
            return picked
        if picked.type != "cuda":
            raise UsageError(
                f"several processes train on cpu or cuda, not on {picked.type}",
                code="training.device-unsupported",
            )
        if self.local_rank >= torch.cuda.device_count():
            raise UsageError(
                f"there are {torch.cuda.device_count()} GPUs here: give torchrun at most as many "
                "processes (--nproc_per_node)",
                code="training.too-few-gpus",
            )
        torch.cuda.set_device(self.local_rank)
        return torch.device("cuda", self.local_rank)

    def check_parallelism(self, parallelism: ParallelismSettings) -> None:
        """Refuse to spread weights over another number of processes than there is.

        Raises:
            UsageError: naming the flag.
        """
        parts, replicas, n = parallelism.dp_shard, parallelism.dp_replicate, self.share.world_size
        if n % parts:
            raise UsageError(
                f"--parallelism.dp_shard={parts}: {n} process(es) train here; start a multiple of "
                f"{parts} (torchrun --nproc_per_node={parts} -m proctor.cli train ...)",
                code="training.process-count",
            )
        if replicas not in (1, n // parts):  # 1 is LeRobot's word for as many as there are
            raise UsageError(
                f"--parallelism.dp_replicate={replicas}: {n} process(es) with "
                f"--parallelism.dp_shard={parts} are {n // parts} replica(s)",
                code="training.process-count",
            )

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean over all processes, each of which must ask for it."""
        if self.is_single_process:
            return values
        total = values.detach().cpu().double()  # not beside the GPU's own traffic
        dist.all_reduce(total)
        return total / self.share.world_size

    @contextmanager
    def local_main_first(self) -> Iterator[None]:
        """Let the first process of every machine do what is inside before the others.

        What it downloads or decodes is there for them; what it refuses is said once.
        """
        if self.local_rank != 0:
            self.barrier()
        yield
        if self.local_rank == 0:
            self.barrier()

    def barrier(self) -> None:
        """Wait until all processes are here."""
        if not self.is_single_process:
            dist.all_reduce(torch.zeros(()))


SINGLE_PROCESS = DistributedContext()


@contextmanager
def process_group() -> Iterator[DistributedContext]:
    """Join the processes that torchrun started, if it did, and leave them at the end.

    Raises:
        TrainingError: another process ended before its time, having said why.
    """
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1 or not dist.is_torchelastic_launched():
        yield DistributedContext()
        return
    made_here = not dist.is_initialized()  # torchrun's store lets no group be made twice
    if made_here:
        gpus = torch.cuda.is_available() and dist.is_nccl_available()
        dist.init_process_group("cpu:gloo,cuda:nccl" if gpus else "gloo", timeout=_PATIENCE)
    try:
        yield DistributedContext(
            ProcessShare(dist.get_rank(), world), int(os.environ["LOCAL_RANK"])
        )
    except RuntimeError as error:
        if any(word in str(error).lower() for word in _GONE):
            said = summarize_traceback(str(error))
            raise TrainingError(
                f"another process of this training is gone: {said}", code="training.process-died"
            ) from error
        raise
    finally:
        if made_here:
            dist.destroy_process_group()
