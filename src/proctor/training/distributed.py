"""Data-parallel and sharded (FSDP) training by several processes, started by torchrun.

    torchrun --nproc_per_node=4 -m proctor.cli train ...

Each process computes its share of every step's samples; gradients are averaged during backward
(learner.py). Only the main process writes checkpoints, log and evaluations.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import torch
from torch import Tensor
from torch import distributed as dist

from proctor.config.sections.training import ParallelismSettings
from proctor.errors import TrainingError, UsageError, summarize_traceback
from proctor.training.data.sampler import ProcessShare

_PATIENCE = timedelta(hours=6)
"""Processes wait this long while one downloads, decodes or validates. torchrun stops all processes
if one dies, so only a hang reaches this timeout."""
_GONE = ("closed by peer", "reset by peer", "connection refused", "broken pipe")


@dataclass(frozen=True)
class DistributedContext:
    """Rank and world size of this process; without torchrun, a single process."""

    share: ProcessShare = field(default_factory=ProcessShare)
    local_rank: int = 0
    """Rank on this machine, which is also the index of its GPU."""

    @property
    def is_single_process(self) -> bool:
        """Whether this is the only process."""
        return self.share.world_size == 1

    @property
    def is_main_process(self) -> bool:
        """Whether this is rank 0, which writes the run folder."""
        return self.share.rank == 0

    def device(self, picked: torch.device) -> torch.device:
        """Select and return this process's device; ``picked`` is the type of all devices."""
        if self.is_single_process or picked.type == "cpu":
            return picked
        if picked.type != "cuda":
            raise UsageError(
                f"training with several processes needs cpu or cuda, not {picked.type}",
                code="training.device-unsupported",
            )
        if self.local_rank >= torch.cuda.device_count():
            raise UsageError(
                f"this machine has {torch.cuda.device_count()} GPUs; start at most as many "
                "processes (torchrun --nproc_per_node)",
                code="training.too-few-gpus",
            )
        torch.cuda.set_device(self.local_rank)
        return torch.device("cuda", self.local_rank)

    def check_parallelism(self, parallelism: ParallelismSettings) -> None:
        """Check that the parallelism settings match the number of processes."""
        parts, replicas, n = parallelism.dp_shard, parallelism.dp_replicate, self.share.world_size
        if n % parts:
            raise UsageError(
                f"--parallelism.dp_shard={parts}: there are {n} process(es); start a multiple of "
                f"{parts} (torchrun --nproc_per_node={parts} -m proctor.cli train ...)",
                code="training.process-count",
            )
        if replicas not in (1, n // parts):  # LeRobot's default 1 means any
            raise UsageError(
                f"--parallelism.dp_replicate={replicas}: {n} process(es) with "
                f"--parallelism.dp_shard={parts} give {n // parts} replica(s)",
                code="training.process-count",
            )

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean over all processes; all processes must call this."""
        if self.is_single_process:
            return values
        total = values.detach().cpu().double()  # avoids mixing with GPU collectives
        dist.all_reduce(total)
        return total / self.share.world_size

    def max(self, values: Sequence[int]) -> list[int]:
        """Return the maximum of each value over all processes; all processes must call this."""
        if self.is_single_process:
            return list(values)
        most = torch.tensor(values)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        return [int(value) for value in most]

    @contextmanager
    def local_main_first(self) -> Iterator[None]:
        """Run the block in the first process of every machine before the others.

        The others find its downloads and caches, and do not start if it fails.
        """
        if self.local_rank != 0:
            self.barrier()
        yield
        if self.local_rank == 0:
            self.barrier()

    def barrier(self) -> None:
        """Wait for all processes."""
        if not self.is_single_process:
            dist.all_reduce(torch.zeros(()))


SINGLE_PROCESS = DistributedContext()


@contextmanager
def process_group() -> Iterator[DistributedContext]:
    """Join torchrun's process group, if there is one, and leave it at the end."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1 or not dist.is_torchelastic_launched():
        yield DistributedContext()
        return
    made_here = not dist.is_initialized()  # torchrun's store allows one group only
    if made_here:
        gpus = torch.cuda.is_available() and dist.is_nccl_available()
        dist.init_process_group("cpu:gloo,cuda:nccl" if gpus else "gloo", timeout=_PATIENCE)
    try:
        yield DistributedContext(
            ProcessShare(dist.get_rank(), world), int(os.environ["LOCAL_RANK"])
        )
    except RuntimeError as error:
        if any(word in str(error).lower() for word in _GONE):
            reason = summarize_traceback(str(error))
            raise TrainingError(
                f"another process of this training has ended: {reason}; see its output",
                code="training.process-died",
            ) from error
        raise
    finally:
        if made_here:
            dist.destroy_process_group()
