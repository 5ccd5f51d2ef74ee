"""A step of `proctor train` against its bare forward, backward and update, on data already there.

    python measurements/training_step.py --dataset.root=DIR --policy.type=act ... (flags of train)

Both in one process, the same network and batch size. The bare step has one normalised batch on the
device and does nothing but compute: loss, gradients, clipping, optimiser. The training's own step
is as its log says it, all else included: reading, decoding, copying, normalising, drawing, noting;
so is the share of it in which there was no batch to compute with. Between the two: that step again
and again on one batch that is there, so what is left is reading and copying. By turns,
PROCTOR_BENCH_ROUNDS times (3).
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
from command import machine, say

from proctor.commands.train import settings_from
from proctor.commands.words import given_flags
from proctor.config.builder import build
from proctor.config.lerobot_training import ours
from proctor.config.training import TrainConfig
from proctor.config.training_sections import Precision
from proctor.policies.runtime.chunk_policy import as_float
from proctor.policies.runtime.numerics import training_numerics
from proctor.training.checkpoints import Checkpoints
from proctor.training.data import batches
from proctor.training.loop import Trainer
from proctor.training.meter import Meter, Reading
from proctor.training.optim import clip_gradients
from proctor.training.setup import prepare

ROUNDS = int(os.environ.get("PROCTOR_BENCH_ROUNDS", "3"))


class Readings:
    """Hears what the log would say; a Watcher."""

    def __init__(self) -> None:
        self.all: list[Reading] = []

    def logged(self, reading: Reading) -> None:
        """Keep it."""
        self.all.append(reading)

    def validated(self, step: int, loss: float) -> None:
        """Nothing is held out here."""

    def saved(self, step: int, checkpoint: Path) -> None:
        """What was saved goes with its folder."""


def bare_step_s(trainer: Trainer, steps: int) -> float:
    """Return the mean seconds of a step that only computes."""
    setup, network = trainer.setup, trainer.setup.parts.network.train()
    here = replace(setup.loading, processes=0)
    feed = batches(setup.samples, setup.order, range(1), here, setup.device)
    batch = next(feed)
    inputs = trainer.preprocess({key: as_float(value) for key, value in batch.items()})
    rows = len(next(iter(batch.values())))
    drawn = setup.draws.for_loss(network, 0, rows)
    draws = {name: value.to(setup.device) for name, value in drawn.items()}
    bf16 = setup.config.accelerator.mixed_precision is Precision.BF16
    parameters, optimizer = list(network.parameters()), trainer.learning.optimizer

    def step() -> None:
        with torch.autocast(setup.device.type, torch.bfloat16, enabled=bf16):
            loss, _ = network.loss(inputs, draws)
        loss.backward()  # type: ignore[no-untyped-call]
        clip_gradients(parameters, setup.recipe.clip_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    with training_numerics(setup.device, deterministic=setup.config.cudnn_deterministic):
        for _ in range(min(10, steps)):
            step()
        settle(setup.device)
        start = time.perf_counter()
        for _ in range(steps):
            step()
        settle(setup.device)
    return (time.perf_counter() - start) / steps


def own_step_s(trainer: Trainer, steps: int) -> float:
    """Return the mean seconds of a training's step whose batch is on the device already."""
    setup = trainer.setup
    setup.parts.network.train()
    here = replace(setup.loading, processes=0)
    batch = next(batches(setup.samples, setup.order, range(1), here, setup.device))
    meter = Meter(setup.device, setup.together)
    with training_numerics(setup.device, deterministic=setup.config.cudnn_deterministic):
        for _ in range(min(10, steps)):
            trainer.step(batch, meter)
        settle(setup.device)
        start = time.perf_counter()
        for _ in range(steps):
            trainer.step(batch, meter)
        settle(setup.device)
    return (time.perf_counter() - start) / steps


def settle(device: torch.device) -> None:
    """Wait for all that the device was asked."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> None:
    """Measure by turns and print the medians."""
    given = given_flags(TrainConfig, sys.argv[1:], f"proctor train\n{__doc__}")
    if given is None:
        return
    settings, _ = settings_from(given)
    config = build(TrainConfig, ours(settings))
    setup = prepare(config)
    setup.fill_caches(lambda *_: None)
    print(machine())
    bare, own, whole, waiting = [], [], [], []
    for _ in range(ROUNDS):
        trainer, heard = Trainer.begin(setup), Readings()
        bare.append(bare_step_s(trainer, config.steps // 2))
        own.append(own_step_s(Trainer.begin(setup), config.steps // 2))
        with tempfile.TemporaryDirectory() as folder:
            trainer.run(Checkpoints(Path(folder)), heard)
        # Before that, memory is still taken for all batches on their way.
        last = heard.all[len(heard.all) // 2 :]
        whole.append(sum(r.step_s for r in last) / len(last))
        waiting.append(sum(r.waiting for r in last) / len(last))
    middle = ROUNDS // 2
    bare_s, whole_s = sorted(bare)[middle], sorted(whole)[middle]
    say("bare step", f"{1000 * bare_s:.2f} ms")
    say("step of the training, on one batch that is there", f"{1000 * sorted(own)[middle]:.2f} ms")
    say("step of the training", f"{1000 * whole_s:.2f} ms")
    say("ratio", f"{whole_s / bare_s:.3f}x", "<= 1.05x")
    say("waiting for data", f"{100 * sorted(waiting)[middle]:.2f}%", "<= 2%")


if __name__ == "__main__":
    main()
