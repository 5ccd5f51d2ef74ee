"""The training loop: batch, loss, update; metrics at intervals, and checkpoints.

    for batch in batches:            prefetched and copied to the device (data.py)
        loss = network.loss(batch)   normalised as the policy's preprocessor does
        loss.backward()
        update                       gradient clipping, optimiser, EMA of the weights
        schedule                     after every batch, as in LeRobot

All random numbers are drawn from (seed, step), and a checkpoint holds the step. So a run that was
killed and resumed ends with the same bits as an uninterrupted run (on a CPU).
"""

from __future__ import annotations

import json
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from proctor.config.lerobot.training import lerobot_train_config
from proctor.config.sections.training import Precision
from proctor.errors import TrainingError, UsageError
from proctor.policies.lerobot.checkpoint.saving import write_checkpoint_files
from proctor.policies.lerobot.config.presets import given_fields
from proctor.policies.lerobot.processors.processors import Pipeline
from proctor.policies.runtime.chunk_policy import to_float_image
from proctor.policies.runtime.network import Network
from proctor.policies.runtime.numerics import step_numerics, training_numerics
from proctor.runs.training import resume_flags
from proctor.system.files import display_path
from proctor.trained_starts import TRAINED_STARTS_FILE
from proctor.training.callback import TrainingCallback
from proctor.training.checkpoints.saving import AVERAGED, PRETRAINED, STATE, Checkpoints
from proctor.training.checkpoints.state import (
    Batching,
    Snapshot,
    TrainerState,
    read_state,
    write_state,
)
from proctor.training.checkpoints.trained_episodes import keep_record
from proctor.training.data.augmentation import augment, plan_augmentation
from proctor.training.data.loading import Batch, n_rows
from proctor.training.data.sampler import WHOLE_SHARE
from proctor.training.data.sharding import full_tensor, gather_state
from proctor.training.metrics.metrics import DivergedTraining, MetricTracker, Update
from proctor.training.metrics.stopping import SaveTimer, StopRequests
from proctor.training.optim.divergence import Divergence, RiseWatch, explain_divergence
from proctor.training.optim.ema import WeightAverage
from proctor.training.optim.gradient_guard import GradientGuard, update_unless
from proctor.training.optim.graph import GraphedStep, uses_cuda_graph
from proctor.training.optim.learner import Learner
from proctor.training.optim.optimizers import (
    clip_gradients,
    make_optimizer,
    make_scheduler,
    param_groups,
)
from proctor.training.rng import RngStreams
from proctor.training.setup import TrainingSetup

_FUSED = ("cuda", "cpu")
"""Devices with fused optimisers; on a CPU they take a quarter to a half of the time."""


@dataclass
class Trainer:
    """A running training."""

    setup: TrainingSetup
    trainer_state: TrainerState
    preprocess: Pipeline
    learner: Learner
    graph: GraphedStep | None = None
    """Computes losses and gradients as a CUDA graph, if enabled."""

    @staticmethod
    def begin(setup: TrainingSetup, resumed: Path | None = None) -> Trainer:
        """Return a training at its first step, or at the step of the checkpoint ``resumed``."""
        config, network = setup.config, setup.parts.network
        learner = Learner(  # shards the weights
            network, config, setup.distributed, setup.device, setup.order.largest_batch
        )
        groups = param_groups(setup.optimization, network)
        optimizer = make_optimizer(setup.optimization, groups, fused=setup.device.type in _FUSED)
        scheduler = make_scheduler(setup.optimization, optimizer, config.steps)
        average = WeightAverage(config.ema, network.parameters()) if config.ema.enable else None
        guard = GradientGuard(setup.optimization.skip_factor, setup.device)
        trainer_state = TrainerState(
            optimizer, scheduler, average, setup.optimization.separate, guard
        )
        if resumed is not None:
            read_state(resumed / STATE, trainer_state, given_fields(config.optimizer).keys())
            _check_accumulation(trainer_state.step, config.accumulation)
        preprocess = setup.parts.preprocessor.on(setup.device)
        trainer = Trainer(setup, trainer_state, preprocess, learner)
        if uses_cuda_graph(config, network, setup.device, setup.distributed):
            trainer.graph = GraphedStep(
                trainer.forward_backward, list(network.parameters()), setup.device
            )
        return trainer

    @property
    def done(self) -> bool:
        """Whether all steps are done."""
        return self.trainer_state.step >= self.setup.config.steps

    def fill_caches(self, on_progress: Callable[[str, int, int], None]) -> None:
        """Decode the cached frames, one process after the other, unless the training is done.

        A single process compiles its step at the same time.
        """
        if self.done:
            return
        with self.setup.distributed.local_main_first():
            if self.compiles_while_filling:
                with _in_background(self.setup.fill_caches, on_progress):
                    self.compile_step()
            else:
                self.setup.fill_caches(on_progress)

    @property
    def compiles_while_filling(self) -> bool:
        """Whether to compile the step while frames are decoded; DDP needs all processes for it."""
        single = self.setup.distributed.is_single_process
        return single and self.learner.is_compiled and self.setup.config.dataset.is_on

    def compile_step(self) -> None:
        """Compile forward and backward pass with one sample, repeated; change no state."""
        setup, network = self.setup, self.setup.parts.network.train()
        rows, buffers = setup.order.largest_batch, list(network.buffers())
        sample = setup.samples.repeated(int(setup.order.frames[0]), rows)
        batch = {key: value.to(setup.device) for key, value in sample.items()}
        before = [buffer.clone() for buffer in buffers]
        with (
            training_numerics(setup.device, deterministic=setup.config.cudnn_deterministic),
            step_numerics(setup.device),
            setup.rng.seed_layers(0, setup.device),
        ):
            compute = self.forward_backward if self.graph is None else self.graph.compute
            compute(self.augmented(batch, 0), self.draw_noise(network, 0, rows))
        for buffer, value in zip(buffers, before, strict=True):
            buffer.copy_(value)
        self.trainer_state.optimizer.zero_grad(set_to_none=True)

    def run(
        self, checkpoints: Checkpoints, callback: TrainingCallback | None, stop: StopRequests
    ) -> signal.Signals | None:
        """Run all remaining steps; without a callback nothing is written or validated.

        A stop signal of any process ends all processes after the same step, with a checkpoint.
        Returns the signal; None if all steps are done.

        Raises:
            KeyboardInterrupt: a second signal came.
            TrainingError: the loss is not finite, the data cannot be read, or a loader process
                died.
            RunFolderError: a checkpoint cannot be written.
        """
        setup, config = self.setup, self.setup.config
        tracker = MetricTracker(setup.device, setup.distributed)
        saver, watch = _Saver(self, checkpoints, callback, tracker), RiseWatch()
        steps = range(self.trainer_state.step, config.steps)
        feed = setup.batches(steps)
        setup.parts.network.train()
        with (
            training_numerics(setup.device, deterministic=config.cudnn_deterministic),
            stop.deferring(),
            self.explaining_divergence(tracker, checkpoints, callback),
            self.keeping_finished_steps(saver),
        ):
            if self.missed_validation(callback):
                self.validate(callback, stop)
            for batch in stop.until_requested(tracker.timed_batches(feed), self.may_stop):
                self.step(batch, tracker)
                step = self.trainer_state.step
                if step % config.log_freq == 0 or step == config.steps:
                    self.report(tracker, callback)
                    rise = watch.newly_risen(tracker.reported_steps)
                    if rise is not None:
                        self.judge_rise(rise, checkpoints, callback)
                if callback is not None:
                    callback.on_step(step)
                if config.eval_steps and step % config.eval_steps == 0:
                    with tracker.untimed():
                        self.validate(callback, stop)
                if saver.save_and_check(stop):
                    break
            signum = self.requested_stop(stop)
            if signum is not None:
                feed.close()  # ends the loader processes, which the signal may also have reached
                saver.report_and_save_rest()
            return signum

    def may_stop(self) -> bool:
        """Return whether this process alone may stop the training before the next step."""
        return self.setup.distributed.is_single_process and self.is_at_update

    @property
    def is_at_update(self) -> bool:
        """Whether no gradients are accumulated, which a checkpoint does not hold."""
        return self.trainer_state.step % self.setup.config.accumulation == 0

    def requested_stop(self, stop: StopRequests) -> signal.Signals | None:
        """Return the stop signal that any process received; all processes must call this."""
        (signum,) = self.setup.distributed.max([stop.requested or 0])
        return signal.Signals(signum) if signum else None

    def report(self, tracker: MetricTracker, callback: TrainingCallback | None) -> None:
        """Pass on the metrics since the last report."""
        metrics = tracker.collect(self.trainer_state.step, self.rate)
        if callback is not None:
            callback.on_metrics(metrics)

    def judge_rise(
        self, rise: Divergence, checkpoints: Checkpoints, callback: TrainingCallback | None
    ) -> None:
        """Warn of a rise of loss and gradients, or end the training (--stop_on_divergence).

        All processes found the same rise, so they end together.

        Raises:
            DivergedTraining: the training is to end.
        """
        step = self.trainer_state.step
        if self.setup.config.stop_on_divergence:
            text = f"the training diverged, as was seen at step {step:,}"
            raise DivergedTraining(text, step, code="training.diverged", divergence=rise)
        if callback is not None:
            good = checkpoints.newest_until(rise.last_good)
            callback.on_rise(rise, good, self.advice_after_rise(rise.last_good, good))

    def missed_validation(self, callback: TrainingCallback | None) -> bool:
        """Return whether a stop signal cut off the validation of the resumed step."""
        step, every = self.trainer_state.step, self.setup.config.eval_steps
        if not every or not step or step % every:
            return False
        lacks = callback is not None and callback.lacks_validation(step)
        return self.setup.distributed.max([lacks]) == [1]

    def validate(self, callback: TrainingCallback | None, stop: StopRequests) -> None:
        """Compute the validation loss; with sharded weights all processes compute it."""
        if callback is not None or self.learner.sharded:
            loss = self.validation_loss(stop)
            if callback is not None and loss is not None:
                callback.on_validation(self.trainer_state.step, loss)

    def save(
        self, checkpoints: Checkpoints, callback: TrainingCallback | None, *, interim: bool
    ) -> None:
        """Write a checkpoint; all processes gather sharded weights."""
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
                trainer_state.step,
                partial(self.write_checkpoint, weights, snapshot),
                interim=interim,
            )
            callback.on_checkpoint(trainer_state.step, path)

    def step(self, batch: Batch, tracker: MetricTracker) -> None:
        """Run one optimiser step, or one step of gradient accumulation."""
        setup, trainer_state = self.setup, self.trainer_state
        network = setup.parts.network
        updates = (trainer_state.step + 1) % setup.config.accumulation == 0
        draws = self.draw_noise(network, trainer_state.step, n_rows(batch))
        inputs = self.augmented(batch, trainer_state.step)
        with (
            step_numerics(setup.device),
            setup.rng.seed_layers(trainer_state.step, setup.device),
            self.learner.gradient_sync(last=updates),
        ):
            loss, parts = (self.graph or self.forward_backward)(inputs, draws)
        trainer_state.step += 1
        update = self.update(network) if updates else None
        if trainer_state.scheduler is not None:
            with warnings.catch_warnings():  # the schedule also steps between updates
                warnings.simplefilter("ignore", UserWarning)
                trainer_state.scheduler.step()
        tracker.add_step(n_rows(batch), loss, parts, update)

    def forward_backward(self, batch: Batch, draws: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of a batch and its parts; accumulate the gradients."""
        with self.learner.compiler_errors():
            loss, parts = self.loss(batch, draws)
            (loss / self.setup.config.accumulation).backward()  # type: ignore[no-untyped-call]
        return loss, parts

    def loss(self, batch: Batch, draws: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of a batch of the dataset, and its parts."""
        setup = self.setup
        inputs = self.preprocess({key: to_float_image(value) for key, value in batch.items()})
        precision = setup.config.accelerator.mixed_precision
        with torch.autocast(setup.device.type, torch.bfloat16, enabled=precision is Precision.BF16):
            return self.learner(inputs, draws)

    def draw_noise(self, network: Network, step: int, rows: int) -> Batch:
        """Return the noise for the loss of a step, on the device."""
        setup = self.setup
        share = setup.distributed.share if network.training else WHOLE_SHARE
        drawn = RngStreams(setup.config.seed, share).loss_noise(network, step, rows)
        if setup.device.type == "cuda":  # else the copy would wait for the GPU
            drawn = {name: value.pin_memory() for name, value in drawn.items()}
        return {name: value.to(setup.device, non_blocking=True) for name, value in drawn.items()}

    def augmented(self, batch: Batch, step: int) -> Batch:
        """Return a batch with its processors' random numbers, and image augmentation if enabled."""
        settings, found = self.setup.config.dataset.image_transforms, dict(batch)
        for key, count in self.preprocess.training_draws.items():
            generator = self.setup.rng.augmentation_generator(key, step)
            drawn = torch.rand(n_rows(batch), count, generator=generator)
            found[key] = drawn.to(self.setup.device)
        if not settings.enable:
            return found
        transforms = settings.transforms()
        for key in [key for key, value in batch.items() if value.dtype == torch.uint8]:
            generator = self.setup.rng.augmentation_generator(key, step)
            plan = plan_augmentation(settings, len(found[key]), generator)
            found[key] = augment(to_float_image(found[key]), transforms, plan)
        return found

    def update(self, network: Network) -> Update:
        """Update the weights with the accumulated gradients, unless these are bad."""
        trainer_state, parameters = self.trainer_state, list(network.parameters())
        assert trainer_state.guard is not None
        norm = clip_gradients(parameters, self.setup.optimization.clip_norm)
        bad = trainer_state.guard.is_bad(norm)
        update_unless(trainer_state.optimizer, bad, sharded=self.learner.sharded)
        if self.graph is None:  # a CUDA graph overwrites gradients in place
            trainer_state.optimizer.zero_grad(set_to_none=True)
        network.after_update(trainer_state.step)
        if trainer_state.average is not None:
            trainer_state.average.update(parameters)
        return Update(norm, bad)

    def check_weights(self) -> None:
        """Check that the weights are finite."""
        weights = (full_tensor(value) for value in self.setup.parts.network.parameters())
        if not all(bool(torch.isfinite(value).all()) for value in weights):
            step = self.trainer_state.step
            raise DivergedTraining(
                f"the weights of step {step} are not finite", step, code="training.not-finite"
            )

    @contextmanager
    def explaining_divergence(
        self, tracker: MetricTracker, checkpoints: Checkpoints, callback: TrainingCallback | None
    ) -> Iterator[None]:
        """Add to the error of a diverged training what happened, and how to go on."""
        try:
            yield
        except DivergedTraining as error:
            records = tracker.last_steps(self.trainer_state.step)
            divergence = error.divergence or explain_divergence(records, error.step)
            good = checkpoints.newest_until(divergence.last_good)
            parts = [str(error), divergence.text]
            if callback is not None:
                parts.append(f"see {display_path(callback.on_divergence(divergence, good))}")
            parts.append(self.advice_after_divergence(divergence.last_good, good))
            raise TrainingError("; ".join(parts), code=error.code) from None

    @contextmanager
    def keeping_finished_steps(self, saver: _Saver) -> Iterator[None]:
        """Write a checkpoint of the finished steps if the data cannot be read any more.

        With several processes, the others may wait within a step: then no checkpoint is written.
        """
        try:
            yield
        except DivergedTraining:
            raise
        except (UsageError, TrainingError) as error:
            if self.may_stop():
                saver.report_and_save_rest()
            raise TrainingError(
                f"{error}; {_continuation(saver.checkpoints)}", code=error.code
            ) from error

    def advice_after_divergence(self, last_good: int, good: Path | None) -> str:
        """Return the command that continues from ``good``, which ``last`` names now."""
        rate = self.setup.optimization.optimizer["lr"]
        rates = sorted({group["lr"] for group in self.trainer_state.optimizer.param_groups})
        which, before = f"--optimizer.lr={rate / 2:g}", ""
        if len(rates) > 1:
            before = f"the groups' rates were {', '.join(f'{n:.1e}' for n in rates)}; "
        if good is None:
            return (
                f"{before}there is no checkpoint yet: start again with {which} and a lower "
                "--save_freq"
            )
        if int(good.name) > last_good:
            before += f"no checkpoint up to step {last_good:,} is left, so this one may be bad; "
        return (
            f"{before}go on from step {int(good.name):,} at a lower rate: proctor train --resume "
            f"--output_dir={display_path(good.parent.parent)} {which}"
            f"{resume_flags(good.parent.parent)}"
        )

    def advice_after_rise(self, last_good: int, good: Path | None) -> str:
        """Return how to go on from the checkpoint ``good`` instead of this training."""
        lower = f"--optimizer.lr={self.setup.optimization.optimizer['lr'] / 2:g}"
        if good is None:
            return f"there is no checkpoint yet: start again with {lower} and a lower --save_freq"
        doubt = ""
        if int(good.name) > last_good:
            doubt = f" (none up to step {last_good:,} is left, so it may be bad)"
        file = display_path(good / PRETRAINED / "train_config.json")
        return (
            f"the checkpoint of step {int(good.name):,} is kept{doubt}; to go on from it, stop "
            f"this training, then: proctor train --resume --config_path={file} {lower}"
            f"{resume_flags(good.parent.parent)}"
        )

    @property
    def rate(self) -> float:
        """The learning rate of the first parameter group."""
        return float(self.trainer_state.optimizer.param_groups[0]["lr"])

    @torch.no_grad()
    def validation_loss(self, stop: StopRequests) -> float | None:
        """Return the mean loss on validation episodes, always on the same samples.

        None: a stop signal came, and no other process depends on this one. A resumed training
        computes the loss then.
        """
        network = self.setup.parts.network.eval()
        total, rows = torch.zeros((), device=self.setup.device), 0
        for number, batch in enumerate(self.setup.validation_batches()):
            with step_numerics(self.setup.device):
                loss, _ = self.loss(batch, self.draw_noise(network, number, n_rows(batch)))
            total += loss.detach() * n_rows(batch)
            rows += n_rows(batch)
            if stop.requested is not None and not self.learner.sharded:
                network.train()
                return None
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
        train_config = json.dumps(
            lerobot_train_config(setup.config, parts.config, optimization), indent=4
        )
        for name, tensors in weights.items():
            (folder / name).mkdir()
            write_checkpoint_files(parts, folder / name, weights=tensors)
            (folder / name / "train_config.json").write_text(train_config)
            setup.trained.write(folder / name)
            (folder / name / TRAINED_STARTS_FILE).write_bytes(setup.trained_starts)
        batching = Batching(
            setup.config.batch_size,
            setup.config.accumulation,
            setup.distributed.share.world_size,
            setup.config.parallelism.dp_shard,
        )
        write_state(folder / STATE, snapshot, setup.rng.lerobot_rng_state(snapshot.step), batching)
        keep_record(folder.parent.parent, folder)


class _Saver:
    """Writes the checkpoints of a session: by steps, by time and on a stop signal."""

    def __init__(
        self,
        trainer: Trainer,
        checkpoints: Checkpoints,
        callback: TrainingCallback | None,
        tracker: MetricTracker,
    ) -> None:
        self._trainer, self._tracker = trainer, tracker
        self.checkpoints, self._callback = checkpoints, callback
        self._config = trainer.setup.config
        self._timer = SaveTimer(self._config.save_minutes)
        self._saved = trainer.trainer_state.step

    def save_and_check(self, stop: StopRequests) -> bool:
        """Write a checkpoint if one is due; return whether any process should stop.

        All processes must call this after every step.
        """
        trainer = self._trainer
        if not trainer.is_at_update:
            return False
        is_timed = self._callback is not None and self._timer.is_due
        requested, due = trainer.setup.distributed.max([stop.requested or 0, is_timed])
        if self._config.saves_after(trainer.trainer_state.step):
            self._save(interim=False)
        elif due:
            self.save_rest()
        else:
            return requested != 0
        return trainer.requested_stop(stop) is not None  # a signal while it was written

    def report_and_save_rest(self) -> None:
        """Report the steps since the last metrics, and write an interim checkpoint."""
        if self._tracker.has_steps:
            self._trainer.report(self._tracker, self._callback)
        self.save_rest()

    def save_rest(self) -> None:
        """Write an interim checkpoint if there were steps since the last checkpoint."""
        if self._config.save_checkpoint and self._trainer.trainer_state.step > self._saved:
            self._save(interim=True)

    def _save(self, *, interim: bool) -> None:
        self._saved = self._trainer.trainer_state.step
        self._tracker.check_finite(self._saved)
        if not self._tracker.ends_finite:
            self._trainer.check_weights()
        with self._tracker.untimed():
            self._trainer.save(self.checkpoints, self._callback, interim=interim)
        self._timer.restart()


@contextmanager
def _in_background(
    fill: Callable[[Callable[[str, int, int], None]], None],
    on_progress: Callable[[str, int, int], None],
) -> Iterator[None]:
    """Fill caches in a thread while the block runs; an error in the block stops it."""
    failed = threading.Event()

    def report(camera: str, frames: int, total: int) -> None:
        if failed.is_set():
            raise CancelledError
        on_progress(camera, frames, total)

    with ThreadPoolExecutor(1, "filling caches") as executor:
        filling = executor.submit(fill, report)
        try:
            yield
            filling.result()
        except BaseException:
            failed.set()
            raise


def _continuation(checkpoints: Checkpoints) -> str:
    """Return the newest checkpoint and the command that continues from it."""
    newest = checkpoints.newest()
    if newest is None:
        return "there is no checkpoint yet: run again"
    return (
        f"{display_path(newest)} is complete; continue with: proctor train --resume "
        f"--output_dir={display_path(newest.parent.parent)}{resume_flags(newest.parent.parent)}"
    )


def _check_accumulation(step: int, accumulation: int) -> None:
    """Refuse to resume within an update, since the accumulated gradients are lost."""
    if step % accumulation:
        raise UsageError(
            f"the checkpoint's step {step} is not a multiple of {accumulation} "
            "(--accelerator.gradient_accumulation.steps), so gradients of its update are lost; "
            "choose a divisor of the step",
            code="checkpoint.partial-accumulation",
        )
