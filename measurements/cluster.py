"""What a cluster costs: Ray on one node against our own pool, and how many nodes a head serves.

    python measurements/cluster.py cost [--rounds=5] [--episodes=300]
    python measurements/cluster.py head

``cost`` plays the same episodes here and by Ray on this one machine in turns. ``head`` measures the
CPU time of the head for a lease (one exchange) and for a commit (one episode), with 64 seats of
engines that play nothing, and puts both into a model of 64 nodes with 16 cores.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import statistics
import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from rich.console import Console

from proctor.config.builder import build
from proctor.config.evaluation import EvalConfig
from proctor.engine import fleet as fleet_module
from proctor.engine.fleet import Fleet
from proctor.engine.lots import Delivery, Effort, Lot, Newcomer, News
from proctor.engine.scheduler import Bounds, Scheduler
from proctor.evaluation.cluster import RayCluster
from proctor.evaluation.node import TELL_S
from proctor.evaluation.run import prepare, run_evaluation
from proctor.machine.ray_cluster import join, quiet_ray
from proctor.recorders.base import Recorder
from proctor.recorders.on_disk import EffortLog, Journal
from proctor.recorders.progress import Progress
from proctor.recorders.stopper import Stopper
from proctor.types import EpisodeResult, EpisodeSpec, Outcome, Task

_SEATS, _CORES = 64, 16
_STEPS = 100
_AHEAD = fleet_module._MOST_AHEAD
_SIZES = ((1, 1, 2000), (1, 1, 5000), (16, _AHEAD, 40000), (1, 1, 5000), (16, _AHEAD, 40000))
"""Simulators a seat, how many episodes wait for each, episodes: lots of one or two, and of many."""


class Meter(Recorder):
    """What was done, in how many seconds and with how much CPU time of all processes below us.

    It begins with the quarter of the episodes: every simulator is open by then.
    """

    def __init__(self, episodes: int) -> None:
        self._left, self._episodes = episodes, episodes
        self.steps, self._began = 0, (0.0, 0.0)
        self.seconds = self.cpu_s = 0.0

    def episode_ended(self, result: EpisodeResult) -> None:
        """Count it."""
        self._left -= 1
        if self._left == self._episodes * 3 // 4:
            self._began = time.monotonic(), _cpu_s()
        elif self._left < self._episodes * 3 // 4:
            self.steps += result.steps
        if self._left == 0:
            self.seconds = time.monotonic() - self._began[0]
            self.cpu_s = _cpu_s() - self._began[1]


def _cpu_s() -> float:
    us = psutil.Process()
    spent = 0.0
    for process in (us, *us.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            spent += sum(process.cpu_times()[:2])
    return spent


def metered(folder: Path, episodes: int, cluster: str | None) -> Meter:
    """Play episodes here or on the cluster."""
    settings: dict[str, Any] = {
        "policy.type": "expert",
        "env.type": "metaworld",
        "env.task": "reach-v3,door-open-v3",
        "eval.n_episodes": episodes // 2,
        "video.episodes": 0,
        "cluster": cluster,
        "output_dir": str(folder),
    }
    meter = Meter(episodes)
    run_evaluation(prepare(build(EvalConfig, settings)), settings, lambda before: [meter])
    return meter


def cost(rounds: int, episodes: int) -> None:
    by_time, by_cpu = [], []
    with tempfile.TemporaryDirectory() as temporary, joined():
        for number in range(rounds):
            here, there = (
                metered(Path(temporary, f"{number}-{cluster}"), episodes, cluster)
                for cluster in (None, "local")
            )
            # By steps: which episodes fall into the time that is measured differs a little.
            by_time.append(there.steps / there.seconds / (here.steps / here.seconds))
            by_cpu.append(there.steps / there.cpu_s / (here.steps / here.cpu_s))
            for name, meter in (("here", here), ("by Ray", there)):
                rate, effort = meter.steps / meter.seconds, meter.steps / meter.cpu_s
                print(f"{name}: {rate:,.0f} steps/s, {effort:,.0f} a second of CPU", flush=True)
    print(
        f"by Ray / here, median of {rounds}: {statistics.median(by_time):.3f} steps/s, "
        f"{statistics.median(by_cpu):.3f} steps a second of CPU time"
    )


@contextmanager
def joined() -> Iterator[None]:
    leave = join("local")
    try:
        yield
    finally:
        leave()


class Echo:
    """An engine that has played whatever it is given."""

    def __init__(self, simulators: int) -> None:
        self._simulators, self._steps = simulators, 0

    def exchange(self, lot: Lot | None, checkpoint: None = None) -> News:
        """Have played it."""
        specs = () if lot is None else lot.specs
        self._steps += _STEPS * len(specs)
        ended = tuple(Delivery(_result(spec), {}) for spec in specs)
        return News(self._simulators, ended, Effort(self._steps))

    def close(self) -> None:
        """There is nothing to close."""


def _result(spec: EpisodeSpec) -> EpisodeResult:
    actions, now = np.zeros((_STEPS, 4), np.float32), time.time()
    return EpisodeResult(
        spec, Outcome.SUCCESS, True, _STEPS, 1.0, 1.0, digest="0" * 64, started_at=now,
        ended_at=now, actions=actions,
    )  # fmt: skip


class Echoes(RayCluster):
    """Many seats of one process that plays nothing, so that only the head works."""

    def __init__(self, simulators: int) -> None:
        self._ray, self._wanting, self._calls = quiet_ray(), set(), {}
        echo = self._ray.remote(Echo).options(num_cpus=0).remote(simulators)
        self._actors = {str(number): echo for number in range(_SEATS)}
        self.exchanges = 0

    def newcomers(self, besides: Collection[str]) -> list[Newcomer]:
        """Return all seats, once."""
        return [Newcomer(seat, seat) for seat in self._actors if seat not in besides]

    def give(self, seat: str, lot: Lot | None) -> None:
        """Count it."""
        self.exchanges += 1
        super().give(seat, lot)


def head_seconds(simulators: int, episodes: int, folder: Path) -> tuple[int, float]:
    """Return how many exchanges so many episodes took, and the head's CPU time for all of it."""
    tasks = [Task("suite", i, f"task-{i}", "", 500, 10) for i in range(50)]
    plan = [EpisodeSpec(task, i, i) for task in tasks for i in range(episodes // 50)]
    console = Console(file=io.StringIO(), force_terminal=False)
    recorders = [
        Journal(folder), Stopper(plan, []), EffortLog(folder), Progress(plan, [], console)
    ]  # fmt: skip
    cluster = Echoes(simulators)
    fleet = Fleet(cluster, folder)
    fleet.has(Scheduler(plan, Bounds(max_batch=1)), {})
    before = time.process_time()
    fleet.run(recorders)
    return cluster.exchanges, time.process_time() - before


def head() -> None:
    calls, episodes, seconds = [], [], []
    with tempfile.TemporaryDirectory() as temporary, joined():
        for place, (simulators, ahead, n) in enumerate(_SIZES):
            folder = Path(temporary, str(place))
            folder.mkdir()
            fleet_module._MOST_AHEAD = ahead
            exchanged, took = head_seconds(simulators, n, folder)
            print(f"{n} episodes, {exchanged} exchanges: {took:.2f} s of the head's CPU time")
            if place:  # the first one has imported what there is to import
                calls.append(exchanged)
                episodes.append(n)
                seconds.append(took)
    (lease_s, commit_s), *_ = np.linalg.lstsq(np.array([calls, episodes]).T, seconds, rcond=None)
    print(f"a lease {1e6 * lease_s:.0f} us, a commit {1e6 * commit_s:.0f} us")
    model(float(lease_s), float(commit_s))


def model(lease_s: float, commit_s: float) -> None:
    """Print how busy a head is, by how long episodes take in one simulator."""
    print(f"{_SEATS} nodes with {_CORES} simulators: episodes of, a second in all, head busy")
    for episode_s in (0.1, 0.5, 1.0, 2.0, 5.0, 20.0, 60.0):
        rate = _SEATS * _CORES / episode_s
        print(f"{episode_s:6g} s {rate:9,.0f} /s {100 * busy(rate, lease_s, commit_s):7.1f}%")
    for share in (0.2, 1.0):
        most = max(r for r in range(1, 200_000) if busy(r, lease_s, commit_s) <= share)
        print(f"{100 * share:.0f}% at {most:,} episodes a second")


def busy(rate: float, lease_s: float, commit_s: float) -> float:
    """Return the share of its time that a head works when so many episodes end a second."""
    each = max(1 / TELL_S, rate / _SEATS / (_AHEAD * _CORES))  # at once where little is left
    return _SEATS * each * lease_s + rate * commit_s


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["cost", "head"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--episodes", type=int, default=300)
    asked = parser.parse_args()
    if asked.what == "cost":
        cost(asked.rounds, asked.episodes)
    else:
        head()


if __name__ == "__main__":
    main()
