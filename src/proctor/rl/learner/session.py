"""One online training on this machine: learner, actors, folder. An observer prints."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from rich.console import Console
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from proctor.callbacks import wandb
from proctor.config.lerobot.online import lerobot_online_config
from proctor.config.online_training import OnlineTrainConfig
from proctor.config.sections.online import Role
from proctor.errors import UsageError
from proctor.policies.lerobot.checkpoint.pretrained import PretrainedConfig, local_checkpoint
from proctor.policies.lerobot.checkpoint.saving import write_checkpoint_files
from proctor.rl.actor.pool import ActorPool
from proctor.rl.algorithms.base import Algorithm
from proctor.rl.algorithms.sac import Sac
from proctor.rl.learner.checkpoints import write_sac
from proctor.rl.learner.learner import Learner, LearnerCounters, LearnerSettings
from proctor.rl.learner.monitor import OnlineMonitor
from proctor.rl.link.links import ActorWeights, LearnerEndpoint
from proctor.rl.replay_storage import ReplayCursor
from proctor.rl.setup import OnlineSetup, prepare
from proctor.runs.training import EVALUATIONS, REPLAY
from proctor.system.files import read_regular_file, require_utf8
from proctor.trained_starts import TRAINED_STARTS_FILE, TrainedStarts
from proctor.training.checkpoints.folder import SessionData, TrainingFolder
from proctor.training.checkpoints.saving import PRETRAINED, STATE
from proctor.training.checkpoints.trained_starts import earlier_starts
from proctor.training.metrics.stopping import StopRequests

_COUNTERS, _TENSORS = "learner.json", "learner.safetensors"
_ALGORITHM, _PUBLISHED = "algorithm.", "published."


def write_learner(learner: Learner, checkpoint: Path) -> None:
    """Write the state of a learner into a checkpoint's folder.

    Raises:
        OSError, SafetensorError: the files cannot be written.
    """
    folder = checkpoint / STATE
    folder.mkdir(exist_ok=True)
    tensors = {_ALGORITHM + name: value for name, value in learner.algorithm.state().items()}
    if learner.published is not None:
        for module, arrays in learner.published.modules.items():
            for name, array in arrays.items():
                tensors[f"{_PUBLISHED}{module}/{name}"] = torch.from_numpy(array)
    save_file({name: value.contiguous() for name, value in tensors.items()}, folder / _TENSORS)
    (folder / _COUNTERS).write_bytes(msgspec.json.encode(asdict(learner.counters)))


def read_learner(
    checkpoint: Path, algorithm: Algorithm
) -> tuple[LearnerCounters, ActorWeights | None]:
    """Restore ``algorithm`` from a checkpoint; return the counters and the published weights."""
    folder = checkpoint / STATE
    try:
        counters = msgspec.json.decode(read_regular_file(folder / _COUNTERS), type=LearnerCounters)
        tensors = load_file(folder / _TENSORS)
        algorithm.load_state(
            {
                name.removeprefix(_ALGORITHM): value
                for name, value in tensors.items()
                if name.startswith(_ALGORITHM)
            }
        )
    except (OSError, SafetensorError, msgspec.MsgspecError, KeyError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise UsageError(
            f"{folder} cannot be resumed: {reason}", code="checkpoint.invalid-state"
        ) from None
    modules: dict[str, dict[str, object]] = {}
    for name, value in tensors.items():
        if name.startswith(_PUBLISHED):
            module, _, key = name.removeprefix(_PUBLISHED).partition("/")
            modules.setdefault(module, {})[key] = value.numpy()
    weights = ActorWeights(modules, counters.published_steps) if modules else None  # type: ignore[arg-type]
    return counters, weights


LOGS = "logs"
_FAREWELL_S = 2.0
"""Time in which actors of other machines receive the last weights, and end."""


class OnlineObserver:
    """Receives the events of an online training. Every method does nothing by default."""

    def __init__(self, console: Console) -> None:
        """Let the session show its progress on ``console``."""
        self.console = console

    def on_note(self, text: str) -> None:
        """Receive a note about the session."""

    def on_interrupted_setup(self, folder: Path) -> None:
        """A stop signal came before the training began."""

    def on_stopped(self, folder: Path, learner: Learner) -> None:
        """A stop signal ended the training; its checkpoint is written."""

    def on_end(self, folder: TrainingFolder, page: Path) -> None:
        """All environment steps are spent, and the report is written."""


@dataclass(frozen=True)
class OnlineResult:
    """The end of an online training."""

    folder: Path
    interrupt: KeyboardInterrupt | None = None
    """The stop signal that ended it; None: all environment steps are spent."""


def run_online_session(
    config: OnlineTrainConfig,
    given: dict[str, Any],
    resumed: Path | None,
    observer: OnlineObserver,
) -> OnlineResult:
    """Learn until the environment steps are spent, or until a stop signal.

    Args:
        config: the settings, of the role ``both`` or ``learner``.
        given: the settings as given, which ``train.json`` records.
        resumed: the checkpoint to continue from; None: there is none yet.
        observer: receives the events of the session.
    """
    folder = TrainingFolder(config.output_dir or _default_folder(config))
    require_utf8(folder.path)
    if config.wandb.active:
        wandb.require_wandb(config.wandb)
    with StopRequests() as stop:
        try:
            setup = prepare(config, resumed)
        except KeyboardInterrupt as interrupt:
            observer.on_interrupted_setup(folder.path)
            return OnlineResult(folder.path, interrupt)
        step = None if resumed is None else int(resumed.name)
        with folder.in_use(config, given, SessionData(resumed_step=step)):
            return _Session(folder, setup, resumed, stop, observer).run()


def _default_folder(config: OnlineTrainConfig) -> Path:
    env = "robot" if config.env is None else config.env.type
    job = config.job_name or f"{env}_{getattr(config.policy, 'type', 'policy')}"
    return Path(time.strftime(f"outputs/train/%Y-%m-%d/%H-%M-%S_{job}"))


@dataclass(frozen=True)
class _Session:
    """A prepared session in its locked folder."""

    folder: TrainingFolder
    setup: OnlineSetup
    resumed: Path | None
    stop: StopRequests
    observer: OnlineObserver

    def run(self) -> OnlineResult:
        learner = self._learner()
        self._set_aside_later_results(learner.counters.environment_steps)
        config = self.setup.config
        monitor = OnlineMonitor(
            self.folder,
            config,
            learner.settings.online_steps,
            self._write_checkpoint,
            self.stop,
            self.observer.console,
        )
        for line in self.setup.headline(learner, self.folder.path):
            monitor.say(line)
        if learner.left_out:
            monitor.say(
                f"{learner.left_out:,} stored transitions are left out: they have numbers that are "
                "not finite or above 1e18"
            )
        try:
            ended = self._learn(learner, monitor)
        except BaseException:
            monitor.close(failed=True)
            raise
        if isinstance(ended, KeyboardInterrupt):
            return OnlineResult(self.folder.path, ended)
        self.observer.on_end(self.folder, ended)
        return OnlineResult(self.folder.path)

    def _learn(self, learner: Learner, monitor: OnlineMonitor) -> Path | KeyboardInterrupt:
        """Run the learner and its actors; return the report, or the signal that ended it."""
        stop = self.stop
        monitor.begin(learner)
        with self._actors(learner, monitor), stop.deferring():
            learner.run(monitor, stop)
            monitor.save_last(learner)
        if stop.requested is None:
            try:
                monitor.wait_for_evaluations()
            except KeyboardInterrupt as interrupt:
                monitor.close(failed=True)
                return interrupt
            monitor.close()
            return monitor.write_report()
        monitor.close_line()
        self.observer.on_stopped(self.folder.path, learner)
        monitor.close(failed=True)
        monitor.write_report()
        return KeyboardInterrupt(stop.requested)

    @contextmanager
    def _actors(self, learner: Learner, monitor: OnlineMonitor) -> Iterator[None]:
        """Connect actors to the learner: processes of this machine, or others by gRPC."""
        config = self.setup.config
        if config.role is Role.LEARNER:
            with self.setup.serve(learner.endpoint) as address:
                monitor.say(f"the learner listens at {address}")
                yield
                if learner.is_done:
                    time.sleep(_FAREWELL_S)
            learner.endpoint.close()
            return
        if learner.is_done:
            yield
            return
        logs, stopping = self.folder.path / LOGS, lambda: self.stop.requested is not None
        pool = ActorPool(config, learner.endpoint, logs, monitor.say, stopping)
        pool.on_failure = self.stop.request
        pool.start()
        try:
            yield
        finally:
            pool.stop_watching()  # the endpoint's end ends the actors, which need no restart
            learner.endpoint.close()
            pool.stop()
        if pool.failure is not None:
            raise pool.failure

    def _learner(self) -> Learner:
        """Return the learner at its start, or as the checkpoint and the journal have it."""
        setup, config = self.setup, self.setup.config
        algorithm = setup.make_algorithm()
        counters, published = None, None
        if self.resumed is not None:
            counters, published = read_learner(self.resumed, algorithm)
        admitted = ReplayCursor()
        if counters is not None:
            admitted = ReplayCursor(counters.environment_steps, counters.intervention_steps)
        storage = setup.open_storage(self.folder.path / REPLAY, admitted)
        endpoint = LearnerEndpoint(storage.positions)
        policy = setup.policy.config
        settings = LearnerSettings(
            online_steps=policy.online_steps,
            steps_before_learning=policy.online_step_before_learning,
            lockstep=config.rl.lockstep,
            push_interval_s=policy.actor_learner.policy_parameters_push_frequency,
            log_freq=config.log_freq,
        )
        return Learner(settings, algorithm, storage, endpoint, counters, published)

    def _write_checkpoint(self, learner: Learner, folder: Path) -> None:
        """Write LeRobot's files, and the exact state beside them."""
        parts, config = self.setup.policy.parts, self.setup.config
        (folder / PRETRAINED).mkdir()
        write_checkpoint_files(parts, folder / PRETRAINED)
        train_config = lerobot_online_config(config, self.setup.policy.config)
        (folder / PRETRAINED / "train_config.json").write_text(json.dumps(train_config, indent=4))
        (folder / PRETRAINED / TRAINED_STARTS_FILE).write_bytes(self._trained_starts(learner))
        assert isinstance(learner.algorithm, Sac)
        write_sac(learner.algorithm, folder, learner.counters.environment_steps, config.seed)
        write_learner(learner, folder)
        if config.rl.write_datasets:
            fps = self.setup.interface.fps or 1
            learner.storage.write_datasets(self.folder.path, fps, config.rl.task)

    def _trained_starts(self, learner: Learner) -> bytes:
        """Return the starts of demonstrations and episodes, and of the checkpoint begun from."""
        setup, policy = self.setup, self.setup.config.policy
        base = None if self.resumed is None else self.resumed / PRETRAINED
        if base is None and isinstance(policy, PretrainedConfig):
            base = local_checkpoint(policy)
        known = earlier_starts(base)
        if setup.demonstrations is not None:
            known = known.merged(setup.demonstrations.trained_starts)
        played = TrainedStarts.of_episodes("online learning", learner.starts)
        unknown = () if learner.unknown_starts is None else (learner.unknown_starts,)
        return known.merged(played).merged(TrainedStarts(unknown=unknown)).encode()

    def _set_aside_later_results(self, step: int) -> None:
        """Rename evaluations of steps after the resumed checkpoint; keep their log."""
        log = self.folder.drop_log_after(step)
        names = self.folder.rename_results_after(step, [EVALUATIONS])
        if log is not None:
            names.append(log.name)
        if names:
            self.observer.on_note(f"of steps after {step:,}, set aside: {', '.join(names)}")
