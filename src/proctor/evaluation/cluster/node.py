"""A node of a cluster: runs leased episodes with its own engine, simulators and policy.

The node is made from the head's config, and refuses to run other episodes than the head's. Files of
an episode (a recording, a video) lie in the node's own folder until they are delivered.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from proctor import plugins
from proctor.callbacks.base import Callback
from proctor.callbacks.judge import Judge
from proctor.config.base import RunConfig
from proctor.config.builder import build
from proctor.engine.cluster.messages import (
    EpisodeBatch,
    EpisodeDelivery,
    NodeEffort,
    NodeFailure,
    NodeReport,
)
from proctor.engine.failures import format_traceback
from proctor.engine.task_order import TaskKey
from proctor.errors import ProctorError, UsageError
from proctor.evaluation.executor import LocalExecutor
from proctor.evaluation.plan import n_workers
from proctor.evaluation.preparing import prepare_context
from proctor.features import Array, Feature
from proctor.fingerprint import JUDGE, changed_fields, describe_changes
from proctor.runs.folder import RunFolder
from proctor.runs.journal import staged_episode_path, video_path
from proctor.runs.records import RunProgress
from proctor.system.locks import Lock, try_lock
from proctor.types import MAX_EPISODES, EpisodeKey, EpisodeResult

REPORT_INTERVAL_S = 1.0
"""Seconds between two reports, unless simulators are about to run out of episodes."""
_CLOSE_S = 2.0
_MOST_LOG = 2**16
_SCRATCH, _ABANDONED_S = "proctor-node-", 60.0


@dataclass(frozen=True)
class NodeSetup:
    """What a node is made from; picklable."""

    config: type[RunConfig]
    settings: dict[str, Any]
    """The config's settings. The node makes its own ``RolloutSettings`` from them: it finds plug-
    ins by name and may have its checkpoint in another folder."""
    protocol: dict[str, Any]
    """The definition of the head's episodes."""
    folder: Path
    """The head's working directory: relative paths start there, if this machine has it too."""
    torch_threads: int | None
    """Number of torch threads on the head, on which the rounding of results depends."""
    judged_images: dict[str, Feature] = field(default_factory=dict)
    """The images of an episode's last state that the head's judge needs."""

    def judge(self) -> Judge | None:
        """Return the head's judge without its network; None: there is none."""
        if not self.judged_images:
            return None
        stated = self.protocol[JUDGE]
        return Judge(_HeadClassifier(self.judged_images, stated), stated["threshold"])


@dataclass(frozen=True)
class _HeadClassifier:
    """The classifier of the head's judge: a node only sends it images."""

    features: dict[str, Feature]
    stated: dict[str, Any]

    def probabilities(self, images: Mapping[str, Array]) -> Array:
        """Raise: the head judges."""
        raise NotImplementedError("the head judges")

    def protocol(self) -> dict[str, Any]:
        """Return what defines a verdict, as the head states it."""
        return self.stated


class NodeClosed(Exception):
    """The head has closed this node."""


class NodeMailbox(Callback):
    """Connects the engine's thread and the head's calls: batches in, deliveries out."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._changed = threading.Condition()
        self._episode_batches: deque[EpisodeBatch] = deque()
        self._unfinished = 0  # accepted episodes that have not ended
        self._report = NodeReport()
        self._effort, self._before = NodeEffort(), NodeEffort()
        self._is_new = self._is_closed = False
        self._starved: frozenset[TaskKey] = frozenset()  # tasks whose workers wait for episodes
        self._asked_for: frozenset[TaskKey] = frozenset()  # starved tasks of the last report
        self._refused: set[TaskKey] = set()
        self._reported_at = time.monotonic()
        self._log_read = 0
        self.executor: LocalExecutor | None = None
        self.actions: dict[EpisodeKey, Array] = {}
        """Actions of replayed episodes."""

    def put(self, episode_batch: EpisodeBatch | None) -> None:
        """Accept the head's answer to the last report.

        A task that the report asked episodes for, and that gets none, is exhausted.
        """
        with self._changed:
            specs = () if episode_batch is None else episode_batch.specs
            self._refused |= self._asked_for - {spec.task.key for spec in specs}
            self._starved -= self._asked_for  # until the engine has seen the answer too
            self._asked_for = frozenset()
            if episode_batch is not None:
                self._episode_batches.append(episode_batch)
                self._unfinished += len(specs)
                self._changed.notify_all()
        if self.executor is not None:
            self.executor.wake()

    def next_report(self) -> NodeReport:
        """Wait until a report is due and return it."""
        with self._changed:
            while (wait_s := self._seconds_to_report()) > 0:
                self._changed.wait(wait_s)
            report = replace(self._report, effort=self._before + self._effort, log=self._new_log())
            self._report = replace(self._report, ended=())
            self._is_new, self._reported_at = False, time.monotonic()
            self._asked_for = self._starved
            return report

    def _seconds_to_report(self) -> float:
        """Return the seconds until the next report."""
        hurry = self._report.ended and self._unfinished <= self._report.simulators
        if self._is_new or hurry or self._starved:
            return 0.0
        return self._reported_at + REPORT_INTERVAL_S - time.monotonic()

    def update_report(self, **what: Any) -> None:
        """Change the next report and make it due at once."""
        with self._changed:
            self._report = replace(self._report, **what)
            self._is_new = True
            self._changed.notify_all()

    def next_batch(self) -> EpisodeBatch:
        """Wait for a batch.

        Raises:
            NodeClosed: no more batches follow.
        """
        with self._changed:
            self._before, self._effort = self._before + self._effort, NodeEffort()
            self._refused.clear()
            while not self._episode_batches and not self._is_closed:
                self._changed.wait()
            if self._is_closed:
                raise NodeClosed
            return self._episode_batches.popleft()

    def end(self) -> None:
        """Let the engine's thread end."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def on_episode_end(self, result: EpisodeResult) -> None:
        """Add the result and the episode's files to the next report."""
        delivery = EpisodeDelivery(result, dict(_take_files(result.spec.key, self._folder)))
        with self._changed:
            self._unfinished -= 1
            self._report = replace(self._report, ended=(*self._report.ended, delivery))
            self._changed.notify_all()

    def on_progress(self, progress: RunProgress) -> None:
        """Note the work done."""
        self._effort = NodeEffort.of(progress)

    def add_batches(self) -> bool:
        """Queue batches that arrived meanwhile; return False, since the engine must not stop.

        Raises:
            NodeClosed: the head has closed this node.
        """
        assert self.executor is not None
        scheduler = self.executor.scheduler
        with self._changed:
            if self._is_closed:
                raise NodeClosed
            while self._episode_batches:
                episode_batch = self._episode_batches.popleft()
                self.actions |= episode_batch.actions
                scheduler.add(episode_batch.specs)
            scheduler.release_tasks(self._refused)
            self._refused.clear()
            self._starved = scheduler.starved_tasks
            if self._starved:
                self._changed.notify_all()
        return False

    def _new_log(self) -> bytes:
        log = self._folder / "workers.log"
        if not log.exists():
            return b""
        with log.open("rb") as file:
            file.seek(self._log_read)
            output = file.read(_MOST_LOG)
        self._log_read += len(output)
        return output


def _take_files(key: EpisodeKey, folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the files of an episode in ``folder``, removing them."""
    recording_folder, video = folder / staged_episode_path(key), folder / video_path(key)
    has_recording = recording_folder.exists()
    files = (
        [path for path in recording_folder.rglob("*") if path.is_file()] if has_recording else []
    )
    for path in (*files, *([video] if video.exists() else ())):
        yield path.relative_to(folder).as_posix(), path.read_bytes()
        path.unlink()
    if has_recording:
        shutil.rmtree(recording_folder)


class Node:
    """Runs batches in a thread of its own, from its creation until ``close``."""

    def __init__(self, setup: NodeSetup, cores: int) -> None:
        self._setup, self._cores = setup, cores
        self._folder, self._lock = _make_scratch_folder()
        self._mailbox = NodeMailbox(self._folder)
        self._checkpoint: Mapping[str, bytes] | None = None
        self._has_checkpoint = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="proctor-engine", daemon=True)
        self._thread.start()

    def exchange(
        self, episode_batch: EpisodeBatch | None, checkpoint: Mapping[str, bytes] | None = None
    ) -> NodeReport:
        """Accept a batch and return the next report, once one is due."""
        if checkpoint is not None:
            self._checkpoint = checkpoint
            self._mailbox.update_report(wants_checkpoint=False)
            self._has_checkpoint.set()
        self._mailbox.put(episode_batch)
        return self._mailbox.next_report()

    def close(self) -> None:
        """End the engine and remove all files of this node."""
        self._mailbox.end()
        self._thread.join(_CLOSE_S)
        self._lock.release()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _serve(self) -> None:
        try:
            executor = self._make_executor()
        except Exception as error:  # noqa: BLE001  reported to the head
            self._mailbox.update_report(failure=_node_failure(error, unfit=True))
            return
        try:
            while True:
                self._run_batch(executor, self._mailbox.next_batch())
        except NodeClosed:
            pass
        except Exception as error:  # noqa: BLE001  reported to the head
            self._mailbox.update_report(failure=_node_failure(error, unfit=False))
        finally:
            executor.close()

    def _make_executor(self) -> LocalExecutor:
        """Make policy and simulators, and check that they match the head's."""
        setup = self._setup
        if setup.folder.is_dir():
            os.chdir(setup.folder)
        config = self._with_checkpoint(build(setup.config, setup.settings))
        context = prepare_context(config, RunFolder(self._folder), range(1), setup.judge())
        torch = sys.modules.get("torch")  # not imported: no policy here uses it
        if torch is not None and setup.torch_threads is not None:
            torch.set_num_threads(setup.torch_threads)
        changed = changed_fields(setup.protocol, context.protocol())
        if changed:
            raise UsageError(
                f"it would run other episodes: {describe_changes(changed)}",
                code="cluster.node-mismatch",
            )
        settings = replace(context.settings(), cores=self._cores)
        simulators = n_workers(settings, context.policy.spec, MAX_EPISODES)
        settings = replace(
            settings,
            flags=replace(settings.flags, batch_size=simulators),
            limits=replace(settings.limits, more_may_come=True),
        )
        self._mailbox.executor = executor = LocalExecutor(settings, context.policy)
        self._mailbox.update_report(simulators=simulators)
        return executor

    def _with_checkpoint(self, config: RunConfig) -> RunConfig:
        """Return the config with a readable checkpoint: its own folder, or the head's files."""
        policy: Any = config.policy
        read_from = plugins.find_policy(policy.type).local_checkpoint
        if read_from is None or Path(policy.path).expanduser().is_dir():
            return config
        self._mailbox.update_report(wants_checkpoint=True)
        self._has_checkpoint.wait()
        assert self._checkpoint is not None
        place = self._folder / "checkpoint"
        for name, content in self._checkpoint.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_bytes(content)
        self._checkpoint = None
        return replace(config, policy=replace(policy, path=str(place), revision=None))

    def _run_batch(self, executor: LocalExecutor, episode_batch: EpisodeBatch) -> None:
        way, mailbox = episode_batch.options, self._mailbox
        mailbox.actions = dict(episode_batch.actions)
        camera = None if way.camera is None else replace(way.camera, folder=self._folder)
        recording = None if way.recording is None else replace(way.recording, folder=self._folder)
        engine = executor.engine_for(episode_batch.specs, dict(way.environment))
        engine.run([mailbox], mailbox.add_batches, camera, mailbox.actions, recording)


def _node_failure(error: Exception, *, unfit: bool) -> NodeFailure:
    return NodeFailure(
        message=str(error) or repr(error),
        cause=format_traceback(error.__cause__ or error),
        kind=type(error).__name__,
        unfit=unfit,
        code=error.code if isinstance(error, ProctorError) else "",
    )


def _make_scratch_folder() -> tuple[Path, Lock]:
    """Make a folder for this node, and remove those of killed nodes."""
    temporary = Path(tempfile.gettempdir())
    for left in temporary.glob(f"{_SCRATCH}*"):
        try:
            if time.time() - left.stat().st_mtime < _ABANDONED_S:
                continue
            lock = try_lock(left / ".lock")
        except OSError:
            continue  # another user's, or gone meanwhile
        if lock is not None:
            shutil.rmtree(left, ignore_errors=True)
            lock.release()
    folder = Path(tempfile.mkdtemp(prefix=_SCRATCH))
    lock = try_lock(folder / ".lock")
    assert lock is not None
    return folder, lock
