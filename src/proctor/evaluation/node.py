"""An engine elsewhere: what a head leases to a node is played there, simulators, policy and all.

It is made from the head's config, and refuses to play anything else than the head's episodes. The
files that an episode leaves (a take, a video) lie in its own folder until they are handed over.
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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from proctor import plugins
from proctor.callbacks.base import Callback
from proctor.config.base import RunConfig
from proctor.config.builder import build
from proctor.engine.cluster_messages import (
    EpisodeBatch,
    EpisodeDelivery,
    NodeEffort,
    NodeFailure,
    NodeReport,
)
from proctor.engine.failures import format_traceback
from proctor.engine.task_order import TaskKey
from proctor.errors import UsageError
from proctor.evaluation.executor import LocalExecutor
from proctor.evaluation.plan import n_workers
from proctor.evaluation.preparing import checked
from proctor.features import Array
from proctor.fingerprint import changed_fields, describe_changes
from proctor.runs.folder import RunFolder
from proctor.runs.journal import staged_episode_path, video_path
from proctor.runs.records import RunProgress
from proctor.system.locks import Lock, try_lock
from proctor.types import MAX_EPISODES, EpisodeKey, EpisodeResult

TELL_S = 1.0
"""Between two news, unless simulators are about to have nothing to do: a head has many to hear."""
_CLOSE_S = 2.0
_MOST_LOG = 2**16
_SCRATCH, _ABANDONED_S = "proctor-node-", 60.0


@dataclass(frozen=True)
class NodeSetup:
    """What an engine elsewhere is made from; picklable."""

    config: type[RunConfig]
    settings: dict[str, Any]
    """What the config is built from: plug-ins are found by name, as on the head."""
    protocol: dict[str, Any]
    """What an episode of the head is."""
    folder: Path
    """Where the head was started: relative paths begin there, where that is on this machine too."""
    torch_threads: int | None
    """By which torch rounds on the head."""


class NodeClosed(Exception):
    """Nobody wants anything more."""


class NodeMailbox(Callback):
    """Between the engine's thread and whoever asks for news: lots in, deliveries out."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._changed = threading.Condition()
        self._episode_batches: deque[EpisodeBatch] = deque()
        self._held = 0  # episodes that were taken in and have not ended
        self._news = NodeReport()
        self._effort, self._before = NodeEffort(), NodeEffort()
        self._is_new = self._is_closed = False
        self._dry: frozenset[TaskKey] = frozenset()  # tasks that workers wait for
        self._asked_for: frozenset[TaskKey] = frozenset()  # of these, when news was told last
        self._refused: set[TaskKey] = set()
        self._told_at = time.monotonic()
        self._log_read = 0
        self.executor: LocalExecutor | None = None
        self.actions: dict[EpisodeKey, Array] = {}
        """Of what is played again."""

    def put(self, episode_batch: EpisodeBatch | None) -> None:
        """Take in what the head answers to the last news: nothing is left of what is not in it."""
        with self._changed:
            specs = () if episode_batch is None else episode_batch.specs
            self._refused |= self._asked_for - {spec.task.key for spec in specs}
            self._dry -= self._asked_for  # until the engine, too, has seen the answer
            self._asked_for = frozenset()
            if episode_batch is not None:
                self._episode_batches.append(episode_batch)
                self._held += len(specs)
                self._changed.notify_all()
        if self.executor is not None:
            self.executor.wake()

    def news(self) -> NodeReport:
        """Wait until there is something to tell at once, or for a while, and tell it."""
        with self._changed:
            while (wait_s := self._telling_in()) > 0:
                self._changed.wait(wait_s)
            told = replace(self._news, effort=self._before + self._effort, log=self._said())
            self._news = replace(self._news, ended=())
            self._is_new, self._told_at = False, time.monotonic()
            self._asked_for = self._dry
            return told

    def _telling_in(self) -> float:
        """Return in how many seconds to tell what there is."""
        hurry = self._news.ended and self._held <= self._news.simulators
        if self._is_new or hurry or self._dry:
            return 0.0
        return self._told_at + TELL_S - time.monotonic()

    def say(self, **what: Any) -> None:
        """Have something told at once."""
        with self._changed:
            self._news = replace(self._news, **what)
            self._is_new = True
            self._changed.notify_all()

    def next_lot(self) -> EpisodeBatch:
        """Wait for a lot.

        Raises:
            Closed: none will come.
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
        """Put it with its files on the desk."""
        delivery = EpisodeDelivery(result, dict(_files_of(result.spec.key, self._folder)))
        with self._changed:
            self._held -= 1
            self._news = replace(self._news, ended=(*self._news.ended, delivery))
            self._changed.notify_all()

    def on_progress(self, progress: RunProgress) -> None:
        """Note what has been done."""
        self._effort = NodeEffort.of(progress)

    def take_more(self) -> bool:
        """Have the engine play what has come meanwhile; return False: it does not stop.

        Raises:
            Closed: nobody wants that.
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
            scheduler.refuse(self._refused)
            self._refused.clear()
            self._dry = scheduler.dry
            if self._dry:
                self._changed.notify_all()
        return False

    def _said(self) -> bytes:
        log = self._folder / "workers.log"
        if not log.exists():
            return b""
        with log.open("rb") as file:
            file.seek(self._log_read)
            said = file.read(_MOST_LOG)
        self._log_read += len(said)
        return said


def _files_of(key: EpisodeKey, folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield what an episode has left in ``folder``, which it leaves by that."""
    take, video = folder / staged_episode_path(key), folder / video_path(key)
    files = [path for path in take.rglob("*") if path.is_file()] if take.exists() else []
    for path in (*files, *([video] if video.exists() else ())):
        yield path.relative_to(folder).as_posix(), path.read_bytes()
        path.unlink()
    if take.exists():
        shutil.rmtree(take)


class Node:
    """Plays lots in a thread of its own, from the moment it is made until it is closed."""

    def __init__(self, order: NodeSetup, cores: int) -> None:
        self._order, self._cores = order, cores
        self._folder, self._lock = _scratch()
        self._mailbox = NodeMailbox(self._folder)
        self._checkpoint: Mapping[str, bytes] | None = None
        self._has_checkpoint = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="proctor-engine", daemon=True)
        self._thread.start()

    def exchange(
        self, episode_batch: EpisodeBatch | None, checkpoint: Mapping[str, bytes] | None = None
    ) -> NodeReport:
        """Take a lot in, and return what has happened since the last call, once something has."""
        if checkpoint is not None:
            self._checkpoint = checkpoint
            self._mailbox.say(wants_checkpoint=False)
            self._has_checkpoint.set()
        self._mailbox.put(episode_batch)
        return self._mailbox.news()

    def close(self) -> None:
        """End the engine and leave nothing on this machine."""
        self._mailbox.end()
        self._thread.join(_CLOSE_S)
        self._lock.release()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _serve(self) -> None:
        try:
            executor = self._opened()
        except Exception as error:  # noqa: BLE001  told to the head
            self._mailbox.say(failure=_failure_of(error, unfit=True))
            return
        try:
            while True:
                self._play(executor, self._mailbox.next_lot())
        except NodeClosed:
            pass
        except Exception as error:  # noqa: BLE001  told to the head
            self._mailbox.say(failure=_failure_of(error, unfit=False))
        finally:
            executor.close()

    def _opened(self) -> LocalExecutor:
        """Make policy and simulators, and see that they are the head's.

        Raises:
            UsageError: something is missing here, or is another than the head's.
        """
        order = self._order
        if order.folder.is_dir():
            os.chdir(order.folder)
        config = self._with_checkpoint(build(order.config, order.settings))
        context = checked(config, RunFolder(self._folder), range(1))
        torch = sys.modules.get("torch")  # where no policy here computes with it, nothing is to do
        if torch is not None and order.torch_threads is not None:
            torch.set_num_threads(order.torch_threads)
        changed = changed_fields(order.protocol, context.protocol())
        if changed:
            raise UsageError(f"it would play other episodes: {describe_changes(changed)}")
        settings = replace(context.settings(), cores=self._cores)
        simulators = n_workers(settings, context.policy.spec, MAX_EPISODES)
        settings = replace(
            settings,
            flags=replace(settings.flags, batch_size=simulators),
            limits=replace(settings.limits, fed=True),
        )
        self._mailbox.executor = executor = LocalExecutor(settings, context.policy)
        self._mailbox.say(simulators=simulators)
        return executor

    def _with_checkpoint(self, config: RunConfig) -> RunConfig:
        """Return the config with a policy that can be read here: from its folder, or one sent."""
        policy: Any = config.policy
        read_from = plugins.find_policy(policy.type).read_from
        if read_from is None or Path(policy.path).expanduser().is_dir():
            return config
        self._mailbox.say(wants_checkpoint=True)
        self._has_checkpoint.wait()
        assert self._checkpoint is not None
        place = self._folder / "checkpoint"
        for name, content in self._checkpoint.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_bytes(content)
        self._checkpoint = None
        return replace(config, policy=replace(policy, path=str(place), revision=None))

    def _play(self, executor: LocalExecutor, episode_batch: EpisodeBatch) -> None:
        way, mailbox = episode_batch.way, self._mailbox
        mailbox.actions = dict(episode_batch.actions)
        camera = None if way.camera is None else replace(way.camera, folder=self._folder)
        recording = None if way.recording is None else replace(way.recording, folder=self._folder)
        engine = executor.engine_for(episode_batch.specs, dict(way.environment))
        engine.run([mailbox], mailbox.take_more, camera, mailbox.actions, recording)


def _failure_of(error: Exception, *, unfit: bool) -> NodeFailure:
    cause = error.__cause__ or error
    return NodeFailure(
        str(error) or repr(error), format_traceback(cause), type(error).__name__, unfit
    )


def _scratch() -> tuple[Path, Lock]:
    """Make a folder of our own, and remove those of engines that were killed."""
    temporary = Path(tempfile.gettempdir())
    for left in temporary.glob(f"{_SCRATCH}*"):
        try:
            if time.time() - left.stat().st_mtime < _ABANDONED_S:
                continue
            lock = try_lock(left / ".lock")
        except OSError:
            continue  # somebody else's, or gone meanwhile
        if lock is not None:
            shutil.rmtree(left, ignore_errors=True)
            lock.release()
    folder = Path(tempfile.mkdtemp(prefix=_SCRATCH))
    lock = try_lock(folder / ".lock")
    assert lock is not None
    return folder, lock
