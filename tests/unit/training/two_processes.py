"""Runs the trainings of a file one after the other in two processes, to import only once.

    python -m torch.distributed.run --standalone --nproc_per_node=2 -m
        tests.unit.training.two_processes ASKED.json
    python -m tests.unit.training.two_processes ASKED.json

Without torchrun it is what torchrun would start, forked after the imports: these take most of the
time, and with torchrun three processes make them.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch

from proctor.cli import main
from proctor.errors import EXIT_INTERRUPTED
from proctor.training.data.loading import Batch
from proctor.training.distributed import process_group
from proctor.training.loop import Trainer
from proctor.training.metrics.metrics import MetricTracker
from tests.ports import free_port

IMPORTED_LATER = (
    "torch._dynamo", "torch.distributed.fsdp", "proctor.training.setup",
)  # fmt: skip
"""Modules that a distributed training imports lazily."""


def train(asked: Path) -> int:
    with process_group():
        return max(train_one(words) for words in json.loads(asked.read_text()))


def train_one(words: list[str]) -> int:
    """Run a training; a first word "interrupt=1:3" sends SIGINT to rank 1 in its step 3."""
    if not words[0].startswith("interrupt="):
        return main(["train", *words])
    rank, _, number = words[0].removeprefix("interrupt=").partition(":")
    update = Trainer.step

    def step(self: Trainer, batch: Batch, tracker: MetricTracker) -> None:
        update(self, batch, tracker)
        if self.trainer_state.step == int(number) and os.environ["RANK"] == rank:
            os.kill(os.getpid(), signal.SIGINT)

    with patch.object(Trainer, "step", step):
        return int(main(["train", *words[1:]]) != EXIT_INTERRUPTED)


def train_as(rank: str, port: str, asked: Path) -> None:
    """Train as one of torchrun's two processes."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "TORCHELASTIC_RUN_ID": "two"}
    code = train(asked)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # torch takes a second to end


def train_both(asked: Path) -> int:
    """Run both processes; stop the other if one fails, as torchrun does."""
    from measurements.child_process import fork_child

    for name in IMPORTED_LATER:
        importlib.import_module(name)
    port = str(free_port())
    left = {fork_child(partial(train_as, rank, port, asked)) for rank in "01"}
    failed = 0
    while left:
        ended, status = os.wait()
        left.remove(ended)
        if status and not failed:
            failed = 1
            for other in left:
                os.kill(other, signal.SIGKILL)
    return failed


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit((train if "RANK" in os.environ else train_both)(Path(sys.argv[1])))
