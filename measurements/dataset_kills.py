"""SIGKILL a dataset writer and in-place edits at random moments; used by ``kills.py``.

The kills hit a child process that records (frames, end_episode, close, resume) or edits in place
(delete, set-task, rename-feature). A LeRobot interpreter may open the dataset after every kill.
"""

from __future__ import annotations

import mmap
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from measurements.child_process import fork_child
from measurements.peers.dataset_opener import LeRobotOpener
from proctor.datasets.edit.build import edit
from proctor.datasets.edit.destination import in_place_destination
from proctor.datasets.edit.operations import delete, rename_feature, set_tasks
from proctor.datasets.format.info_file import read_info
from proctor.datasets.reader import open as open_dataset
from proctor.datasets.writer import DatasetWriter
from proctor.features import Array
from proctor.system.files import recover_swap

FRAMES, SIDE, FPS = 6, 64, 10
CAMERA = "observation.image"
AXES = ["height", "width", "channels"]
FEATURES: dict[str, dict[str, Any]] = {
    "observation.state": {"dtype": "float32", "shape": [2], "names": None},
    CAMERA: {"dtype": "video", "shape": [SIDE, SIDE, 3], "names": AXES},
    "action": {"dtype": "float32", "shape": [2], "names": None},
}
KILLS_A_DATASET = 20


class Shared:
    """Progress of a child process, in shared memory that survives a kill."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 16)

    def store(self, done: int, phase: int) -> None:
        """Store the number of finished items and the current phase."""
        self._memory[:16] = done.to_bytes(8, "little") + phase.to_bytes(8, "little")

    def load(self) -> tuple[int, int]:
        """Return the number of finished items and the phase that were stored last."""
        done, phase = self._memory[:8], self._memory[8:16]
        return int.from_bytes(done, "little"), int.from_bytes(phase, "little")


@dataclass
class Tally:
    """Counts of kills and of their damage."""

    phases: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    unreadable: list[str] = field(default_factory=list)
    refused_by_lerobot: list[str] = field(default_factory=list)
    opened_by_lerobot: int = 0


def ask(peer: LeRobotOpener, root: Path, tally: Tally) -> None:
    """Let LeRobot open the dataset; LeRobot cannot open one without episodes."""
    info = read_info(root)
    if not info.total_episodes:
        return
    said = peer.opened(root)
    if (said.get("episodes"), said.get("frames")) == (info.total_episodes, info.total_frames):
        tally.opened_by_lerobot += 1
    else:
        tally.refused_by_lerobot.append(str(said))


def shade(episode: int, i: int) -> int:
    return (episode * 37 + i * 20) % 200 + 20


def record_episode(writer: DatasetWriter, shared: Shared) -> None:
    number = writer.n_episodes
    shared.store(number, 1)
    for i in range(FRAMES):
        writer.add_frame(frame_of(number, i), f"task {number % 3}")
    shared.store(number, 2)
    writer.end_episode()
    shared.store(number + 1, 2)


def frame_of(episode: int, i: int) -> dict[str, Array]:
    values = np.array([episode, i], np.float32)
    picture = np.full((SIDE, SIDE, 3), shade(episode, i), np.uint8)
    return {"observation.state": values, CAMERA: picture, "action": values}


PHASES = ("resume", "frames", "end_episode", "close")


def record(root: Path, shared: Shared, rounds: int = 1000) -> None:
    """Repeat: record three episodes, discard a fourth, close."""
    for _ in range(rounds):
        exists = (root / "meta/info.json").exists()
        resumed = DatasetWriter.resume(root) if exists else None
        writer = resumed or DatasetWriter.create(root, FPS, FEATURES)
        for _ in range(3):
            record_episode(writer, shared)
        writer.add_frame(frame_of(999, 0), "never")
        writer.discard_episode()
        shared.store(writer.n_episodes, 3)
        writer.close()
        shared.store(writer.n_episodes, 0)


def in_child(work: Callable[[], None]) -> None:
    """Run ``work`` in a child, so that no threads stay: a process that forks must have none."""
    os.waitpid(fork_child(work), 0)


def killed(
    work: Callable[[], None], seconds: float, begun: Callable[[], bool] = lambda: True
) -> bool:
    """Run ``work`` in a child until ``begun`` plus ``seconds``, then kill it; False: it ended."""
    child = fork_child(work)
    while not begun():
        time.sleep(0.001)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return True
    if os.WEXITSTATUS(status):
        sys.exit("the child failed by itself")
    return False


def check_recorded(root: Path, heard: int, tally: Tally) -> None:
    """Check that every finished episode exists, with all frames and the last images."""
    try:
        dataset = open_dataset(root)
        n = dataset.info.total_episodes
        tally.lost += max(0, heard - n)
        if not n:
            return
        states = dataset.batch(range(len(dataset)), keys=["observation.state"])["observation.state"]
        expected = [[e, i] for e in range(n) for i in range(FRAMES)]
        last = range(max(0, n - 4) * FRAMES, n * FRAMES)
        pictures = dataset.batch(last, keys=[CAMERA])[CAMERA]
        shades = [shade(*divmod(position, FRAMES)) for position in last]
        means = pictures.reshape(len(pictures), -1).mean(axis=1)
        if states.tolist() != expected or np.abs(means - shades).max() > 4:
            tally.unreadable.append(f"{root}: other frames than were recorded")
    except Exception as error:  # noqa: BLE001  every error is counted
        tally.unreadable.append(f"{type(error).__name__}: {error}")


def has_begun(shared: Shared, *, at_once: bool) -> bool:
    """Return whether a child may be killed: at once, or when it has resumed its dataset."""
    return at_once or shared.load()[1] > 0


def kill_recordings(kills: int, chance: np.random.Generator, peer: LeRobotOpener | None) -> Tally:
    tally = Tally()
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        in_child(lambda: record(Path(folder) / "timed", Shared(), rounds=1))
        whole = time.monotonic() - began
        for number in range(kills):
            root = Path(folder) / f"dataset{number // KILLS_A_DATASET}"
            shared = Shared()
            before = read_info(root).total_episodes if (root / "meta/info.json").exists() else 0
            shared.store(before, 0)
            at_once = chance.random() < 0.2
            killed(
                partial(record, root, shared),
                chance.uniform(0, 1.2 * whole),
                partial(has_begun, shared, at_once=at_once),
            )
            heard, phase = shared.load()
            tally.phases[PHASES[phase]] += 1
            if not (root / "meta/info.json").exists():
                recover_swap(root)
                if heard == 0:
                    continue
            check_recorded(root, heard, tally)
            if peer is not None:
                ask(peer, root, tally)
    return tally


def state_of(root: Path) -> tuple[object, ...]:
    """Return the parts of a dataset that an edit may change, read from disk."""
    dataset = open_dataset(root)
    states = dataset.batch(range(len(dataset)), keys=["observation.state"])["observation.state"]
    tasks = tuple(row.tasks for row in dataset.episodes)
    dataset.batch(range(0, len(dataset), 5), keys=[CAMERA])
    return tuple(states[::FRAMES, 0].tolist()), tasks, tuple(dataset.info.features)


EDITS = (
    lambda source: delete(source, [1, 4]),
    lambda source: set_tasks(source, {0: "something else"}),
    lambda source: rename_feature(source, "action", "wanted"),
    lambda source: delete(source, [0]),
)


def edit_all(root: Path, shared: Shared) -> None:
    for number, change in enumerate(EDITS):
        shared.store(number, number)
        edit(root, in_place_destination(root), change)
        shared.store(number + 1, number)


def make_base(root: Path) -> None:
    with DatasetWriter.create(root, FPS, FEATURES) as writer:
        for _ in range(8):
            record_episode(writer, Shared())


def kill_edits(kills: int, chance: np.random.Generator, peer: LeRobotOpener | None) -> Tally:
    tally = Tally()
    with tempfile.TemporaryDirectory() as folder:
        base, root = Path(folder) / "base", Path(folder) / "dataset"
        in_child(lambda: make_base(base))
        shutil.copytree(base, root)
        states, began = [state_of(root)], time.monotonic()
        for change in EDITS:
            edit(root, in_place_destination(root), change)
            states.append(state_of(root))
        whole = time.monotonic() - began
        while sum(tally.phases.values()) < kills:
            shutil.rmtree(root)
            shutil.copytree(base, root)
            shared = Shared()
            if not killed(partial(edit_all, root, shared), chance.uniform(0, whole)):
                continue
            done, phase = shared.load()
            tally.phases[f"edit {phase + 1} of {len(EDITS)}"] += 1
            try:
                recover_swap(root)
                if state_of(root) not in states[done : done + 2]:
                    tally.lost += 1
                if peer is not None:
                    ask(peer, root, tally)
            except Exception as error:  # noqa: BLE001  every error is counted
                tally.unreadable.append(f"{type(error).__name__}: {error}")
    return tally


def show(what: str, tally: Tally) -> bool:
    kills = sum(tally.phases.values())
    moments = ", ".join(f"{name} {count}" for name, count in sorted(tally.phases.items()))
    print(
        f"{what}: {kills} kills ({moments}): {tally.lost} lost, {len(tally.unreadable)} broken, "
        f"opened by LeRobot {tally.opened_by_lerobot}, not {len(tally.refused_by_lerobot)}"
    )
    for line in (*tally.unreadable, *tally.refused_by_lerobot):
        print(f"  {line}")
    return not (tally.lost or tally.unreadable or tally.refused_by_lerobot)


def kill_writers(record_kills: int, edit_kills: int, python: str | None, seed: int) -> bool:
    """Kill recordings and edits; return whether nothing was lost."""
    peer = None if python is None else LeRobotOpener(python)
    good = show("recording", kill_recordings(record_kills, np.random.default_rng(seed), peer))
    return good & show("editing", kill_edits(edit_kills, np.random.default_rng(seed + 1), peer))
