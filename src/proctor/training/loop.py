"""The loop: a batch, its loss, an update; a line now and then, and checkpoints.

    for batch in batches:            read, decoded and copied ahead of time (data.py)
        loss = network.loss(batch)   normalised as the policy's preprocessor does
        loss.backward()
        update                       gradients clipped, optimiser, average of weights
        schedule                     after every batch, as in LeRobot

Whatever is random is drawn from (seed, step), and a checkpoint holds the step: a run that was
killed anywhere and resumed ends with the same bits as one that was not (on a CPU).
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from proctor.config.lerobot_training import lerobot_train_config
from proctor.config.training_sections import Precision
from proctor.errors import UsageError
from proctor.features import ACTION
from proctor.policies.lerobot.processors import Pipeline
from proctor.policies.lerobot.saving import write_parts
from proctor.policies.runtime.chunk_policy import as_float
from proctor.policies.runtime.network import Network
from proctor.policies.runtime.numerics import step_numerics, training_numerics
from proctor.training.augmentation import augment, plan_augmentation
from proctor.training.checkpoints import AVERAGED, PRETRAINED, STATE, Checkpoints
from proctor.training.data import Batch, batches
from proctor.training.ema import WeightAverage
from proctor.training.graph import GraphedStep, uses_cuda_graph
from proctor.training.learner import Learner
from proctor.training.metrics import Metrics, MetricTracker
from proctor.training.optim import clip_gradients, make_optimizer, make_scheduler, param_groups
from proctor.training.rng import RngStreams
from proctor.training.sampler import WHOLE_SHARE
from proctor.training.setup import TrainingSetup
from proctor.training.sharding import gather_state
from proctor.training.state import Batching, Snapshot, TrainerState, read_state, write_state

_FUSED = ("cuda", "cpu")
"""Where one kernel updates all weights: on a CPU in a quarter to a half of the time."""


class TrainingCallback(Protocol):
    """Who is told how a training goes."""

    def on_metrics(self, metrics: Metrics) -> None:
        """The steps since the last reading are done."""

    def on_validation(self, step: int, loss: float) -> None:
        """The loss on held-out episodes is known."""

    def on_checkpoint(self, step: int, checkpoint: Path) -> None:
        """A checkpoint is whole and on the disk."""


@dataclass
class Trainer:
    """One training, somewhere between its first and its last step."""

    setup: TrainingSetup
    trainer_state: TrainerState
    preprocess: Pipeline
    learner: Learner
    graph: GraphedStep | None = None
    """Computes losses and gradients in one go, where it can."""

    @staticmethod
    def begin(setup: TrainingSetup, resumed: Path | None = None) -> Trainer:
        """Return a training before its first step, or where the checkpoint ``resumed`` left off.

        Raises:
            UsageError: the checkpoint is not of this training.
        """
        config, network = setup.config, setup.parts.network
        learner = Learner(network, config, setup.distributed, setup.device)  # spreads the weights
        groups = param_groups(setup.optimization, network)
        optimizer = make_optimizer(setup.optimization, groups, fused=setup.device.type in _FUSED)
        scheduler = make_scheduler(setup.optimization, optimizer, config.steps)
        average = WeightAverage(config.ema, network.parameters()) if config.ema.enable else None
        trainer_state = TrainerState(optimizer, scheduler, average, setup.optimization.separate)
        if resumed is not None:
            read_state(resumed / STATE, trainer_state)
            _check_collected(trainer_state.step, config.accumulation)
        preprocess = setup.parts.preprocessor.on(setup.device)
        trainer = Trainer(setup, trainer_state, preprocess, learner)
        if uses_cuda_graph(config, network, setup.device, setup.distributed):
            trainer.graph = GraphedStep(
                trainer.forward_backward, list(network.parameters()), setup.device
            )
        return trainer

    @property
    def done(self) -> bool:
        """Whether no step is left."""
        return self.trainer_state.step >= self.setup.config.steps

    def fill_caches(self, told: Callable[[str, int, int], None]) -> None:
        """Decode what a cache is to keep, one process after the other, if anybody will look at it.

        Raises:
            UsageError: the dataset cannot be read, or the cache not be written.
        """
        if not self.done:
            with self.setup.distributed.local_main_first():
                self.setup.fill_caches(told)

    def run(self, checkpoints: Checkpoints, callback: TrainingCallback | None) -> None:
        """Take all steps that are left; without a watcher, nothing is written or validated.

        Raises:
            TrainingError: the loss is no number any more, or a loader process is gone.
            RunFolderError: the disk does not take a checkpoint.
        """
        setup, trainer_state, config = self.setup, self.trainer_state, self.setup.config
        tracker = MetricTracker(setup.device, setup.distributed)
        steps = range(trainer_state.step, config.steps)
        feed = batches(setup.samples, setup.order, steps, setup.loading, setup.device)
        setup.parts.network.train()
        with training_numerics(setup.device, deterministic=config.cudnn_deterministic):
            for batch in tracker.timed_batches(feed):
                self.step(batch, tracker)
                step = trainer_state.step
                if step % config.log_freq == 0 or step == config.steps:
                    metrics = tracker.collect(step, self.rate)
                    if callback is not None:
                        callback.on_metrics(metrics)
                if config.eval_steps and step % config.eval_steps == 0:
                    with tracker.untimed():
                        self.validate(callback)
                if config.saves_after(step):
                    tracker.check_finite(step)
                    with tracker.untimed():
                        self.save(checkpoints, callback)

    def validate(self, callback: TrainingCallback | None) -> None:
        """Tell the loss on held-out episodes; with weights that are spread, all compute it."""
        if callback is not None or self.learner.sharded:
            loss = self.validation_loss()
            if callback is not None:
                callback.on_validation(self.trainer_state.step, loss)

    def save(self, checkpoints: Checkpoints, callback: TrainingCallback | None) -> None:
        """Write a checkpoint; what is spread over processes, these bring together.

        Raises:
            RunFolderError: the disk does not take it.
        """
        if callback is None and not self.learner.sharded:
            return
        trainer_state, network, keep = (
            self.trainer_state,
            self.setup.parts.network,
            callback is not None,
        )
        weights = {PRETRAINED: gather_state(network.state_dict(), keep=keep)}
        if trainer_state.average is not None:
            averages = trainer_state.average.weights_of(network)
            weights[AVERAGED] = gather_state(averages, keep=keep)
        snapshot = trainer_state.snapshot(keep=keep)
        if callback is not None:
            path = checkpoints.save(
                trainer_state.step, partial(self.write_checkpoint, weights, snapshot)
            )
            callback.on_checkpoint(trainer_state.step, path)

    def step(self, batch: Batch, tracker: MetricTracker) -> None:
        """Learn from one batch."""
        setup, trainer_state = self.setup, self.trainer_state
        network = setup.parts.network
        updates = (trainer_state.step + 1) % setup.config.accumulation == 0
        draws = self.draw_noise(network, trainer_state.step, len(batch[ACTION]))
        seen = self.augmented(batch, trainer_state.step)
        with (
            step_numerics(setup.device),
            setup.rng.seed_layers(trainer_state.step, setup.device),
            self.learner.gradient_sync(last=updates),
        ):
            loss, parts = (self.graph or self.forward_backward)(seen, draws)
        trainer_state.step += 1
        norm = self.update(network) if updates else None
        if trainer_state.scheduler is not None:
            with warnings.catch_warnings():  # of schedules that move on between two updates
                warnings.simplefilter("ignore", UserWarning)
                trainer_state.scheduler.step()
        tracker.add_step(len(batch[ACTION]), loss, parts, norm)

    def forward_backward(self, batch: Batch, draws: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of a batch and its parts; its gradients are collected at the weights."""
        loss, parts = self.loss(batch, draws)
        (loss / self.setup.config.accumulation).backward()  # type: ignore[no-untyped-call]
        return loss, parts

    def loss(self, batch: Batch, draws: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of a batch as it comes from the dataset, and its parts."""
        setup, network = self.setup, self.setup.parts.network
        inputs = self.preprocess({key: as_float(value) for key, value in batch.items()})
        precision = setup.config.accelerator.mixed_precision
        with torch.autocast(setup.device.type, torch.bfloat16, enabled=precision is Precision.BF16):
            distributed = network.training or self.learner.sharded
            return self.learner(inputs, draws) if distributed else network.loss(inputs, draws)

    def draw_noise(self, network: Network, step: int, rows: int) -> Batch:
        """Return what the loss of a step is drawn, on the device."""
        setup = self.setup
        share = setup.distributed.share if network.training else WHOLE_SHARE
        drawn = RngStreams(setup.config.seed, share).loss_noise(network, step, rows)
        if setup.device.type == "cuda":  # else the copy would wait for all that is computing
            drawn = {name: value.pin_memory() for name, value in drawn.items()}
        return {name: value.to(setup.device, non_blocking=True) for name, value in drawn.items()}

    def augmented(self, batch: Batch, step: int) -> Batch:
        """Return a batch with its pictures changed, where that is asked for."""
        settings = self.setup.config.dataset.image_transforms
        if not settings.enable:
            return batch
        found, transforms = dict(batch), settings.transforms()
        for key in [key for key, value in batch.items() if value.dtype == torch.uint8]:
            generator = self.setup.rng.augmentation_generator(key, step)
            what = plan_augmentation(settings, len(found[key]), generator)
            found[key] = augment(as_float(found[key]), transforms, what)
        return found

    def update(self, network: Network) -> Tensor:
        """Change the weights by the gradients that were collected; return these's norm."""
        trainer_state, parameters = self.trainer_state, list(network.parameters())
        norm = clip_gradients(parameters, self.setup.optimization.clip_norm)
        trainer_state.optimizer.step()
        if self.graph is None:  # it writes over them where they are
            trainer_state.optimizer.zero_grad(set_to_none=True)
        network.updated(trainer_state.step)
        if trainer_state.average is not None:
            trainer_state.average.update(parameters)
        return norm

    @property
    def rate(self) -> float:
        """The learning rate of the first group."""
        return float(self.trainer_state.optimizer.param_groups[0]["lr"])

    @torch.no_grad()
    def validation_loss(self) -> float:
        """Return the mean loss on episodes that are not trained on: always the same samples."""
        assert self.setup.held_out is not None
        samples, order = self.setup.held_out
        network = self.setup.parts.network.eval()
        steps, loading = range(order.batches_per_epoch), replace(self.setup.loading, processes=0)
        total, rows = torch.zeros((), device=self.setup.device), 0
        for number, batch in enumerate(batches(samples, order, steps, loading, self.setup.device)):
            with step_numerics(self.setup.device):
                loss, _ = self.loss(batch, self.draw_noise(network, number, len(batch[ACTION])))
            total += loss.detach() * len(batch[ACTION])
            rows += len(batch[ACTION])
        network.train()
        return float(total) / rows

    def write_checkpoint(
        self, weights: dict[str, dict[str, Tensor]], snapshot: Snapshot, folder: Path
    ) -> None:
        """Write the files of a checkpoint into an empty folder."""
        setup, parts = self.setup, self.setup.parts
        optimization = {
            "optimizer": setup.optimization.optimizer,
            "scheduler": setup.optimization.schedule,
        }
        told = json.dumps(lerobot_train_config(setup.config, parts.config, optimization), indent=4)
        for name, tensors in weights.items():
            (folder / name).mkdir()
            write_parts(parts, folder / name, weights=tensors)
            (folder / name / "train_config.json").write_text(told)
        batching = Batching(
            setup.config.batch_size,
            setup.config.accumulation,
            setup.distributed.share.world_size,
            setup.config.parallelism.dp_shard,
        )
        write_state(folder / STATE, snapshot, setup.rng.lerobot_rng_state(snapshot.step), batching)


def _check_collected(step: int, accumulation: int) -> None:
    """Refuse to go on amid the batches of an update: the gradients of the first ones are gone."""
    if step % accumulation:
        raise UsageError(
            f"the checkpoint's step {step} is no multiple of {accumulation}, the batches of one "
            "update (--accelerator.gradient_accumulation.steps): its first update would lack some",
            code="checkpoint.partial-accumulation",
        )
