"""Runs on a Ray cluster of two nodes on this machine while workers, engines and nodes are killed.

    python -m tests.chaos.on_ray [--runs=20] [--episodes=200] [--seed=0]

Every run is compared with one in this process alone.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from proctor.callbacks.base import Callback
from proctor.config.builder import build
from proctor.config.evaluation import EvalConfig
from proctor.evaluation.preparing import prepare
from proctor.evaluation.run import run_evaluation
from proctor.runs.journal import read_journal
from proctor.system.ray_cluster import import_ray
from proctor.types import EpisodeKey, EpisodeResult
from tests.chaos.trial import Course, course, whole_rows

TASKS = 10
METAWORLD = {
    "policy.type": "expert",
    "env.type": "metaworld",
    "env.task": "reach-v3,push-v3,pick-place-v3,door-open-v3,drawer-open-v3,"
    "drawer-close-v3,button-press-topdown-v3,peg-insert-side-v3,window-open-v3,window-close-v3",
    "env.episode_length": 30,
    "video.episodes": 0,
}
_STORE = 80 * 2**20


class Nodes:
    """Two nodes with one core each, and a head that runs no episodes."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self._cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 0,
                "num_gpus": 0,
                "object_store_memory": _STORE,
                "include_dashboard": False,
            },
        )
        self._alive = [self._added(), self._added()]
        self.address: str = self._cluster.address

    def _added(self) -> Any:
        return self._cluster.add_node(num_cpus=1, num_gpus=0, object_store_memory=_STORE)

    def replace_one(self, rng: random.Random) -> None:
        node = self._alive.pop(rng.randrange(len(self._alive)))
        self._cluster.remove_node(node, allow_graceful=False)
        self._alive.append(self._added())

    def close(self) -> None:
        self._cluster.shutdown()


@contextlib.contextmanager
def two_nodes() -> Iterator[Nodes]:
    """Start the nodes, with this process as their driver."""
    ray = import_ray()
    nodes = Nodes()
    try:
        ray.init(address=nodes.address, log_to_driver=False, configure_logging=False)
        yield nodes
    finally:
        ray.shutdown()
        nodes.close()


def engines() -> list[psutil.Process]:
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if " ".join(process.cmdline()).startswith("ray::_Actor"):
                found.append(process)
    return found


def kill_engine(rng: random.Random) -> bool:
    alive = engines()
    if alive:
        rng.choice(alive).kill()
    return bool(alive)


def kill_worker(rng: random.Random) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        workers = [w for e in engines() for server in e.children() for w in server.children()]
        if workers:
            rng.choice(workers).kill()
            return True
    return False


@dataclass
class Strikes(Callback):
    """A callback that kills a process whenever a number of episodes have ended.

    Where none of the kind lives at that moment, it is tried again after the next episode.
    """

    nodes: Nodes
    rng: random.Random
    moments: dict[int, str]
    landed: list[str] = field(default_factory=list)
    ended: int = 0

    def on_episode_end(self, result: EpisodeResult) -> None:
        self.ended += 1
        for moment in [m for m in self.moments if m <= self.ended]:
            if self._strike(self.moments[moment]):
                self.landed.append(self.moments.pop(moment))

    def _strike(self, what: str) -> bool:
        if what == "node":
            self.nodes.replace_one(self.rng)
            return True
        return (kill_worker if what == "worker" else kill_engine)(self.rng)


def played(
    episodes: dict[str, Any],
    folder: Path,
    cluster: str | None = None,
    watching: list[Callback] | None = None,
) -> dict[EpisodeKey, Course]:
    """Evaluate into ``folder`` and return the results that must not change."""
    given = episodes | {"output_dir": str(folder), "cluster": cluster}
    run_evaluation(prepare(build(EvalConfig, given)), given, lambda before, how: watching or [])
    return {row.key: course(row) for row in read_journal(folder).rows}


@dataclass(frozen=True)
class Verdict:
    """The result of a disturbed run."""

    lost: int
    duplicated: int
    changed: int
    errors: int
    landed: list[str]
    seconds: float

    @property
    def sound(self) -> bool:
        return not (self.lost or self.duplicated or self.changed or self.errors)


def disturbed(
    nodes: Nodes,
    episodes: dict[str, Any],
    folder: Path,
    expected: dict[EpisodeKey, Course],
    rng: random.Random,
) -> Verdict:
    """Run the episodes on the cluster while processes of every kind are killed, and compare."""
    kinds = ["worker", "engine", "node"]
    rng.shuffle(kinds)
    places = sorted(rng.sample(range(1, len(expected) * 3 // 4), len(kinds)))
    strikes = Strikes(nodes, rng, dict(zip(places, kinds, strict=True)))
    began = time.monotonic()
    found = played(episodes, folder, "auto", [strikes])
    rows = whole_rows(folder)
    return Verdict(
        lost=len(expected.keys() - found.keys()),
        duplicated=len(rows) - len(found),
        changed=sum(found[key] != expected[key] for key in found),
        errors=sum(row.error is not None for row in rows),
        landed=strikes.landed,
        seconds=time.monotonic() - began,
    )


def main() -> int:
    parser = argparse.ArgumentParser()
    for name, default in (("runs", 20), ("episodes", 200), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args()
    unsound = 0
    with tempfile.TemporaryDirectory(prefix="on-ray-") as temporary:
        place, episodes = Path(temporary), METAWORLD | {"eval.n_episodes": asked.episodes // TASKS}
        expected = played(episodes, place / "here")
        alone = played(episodes, place / "one", "local")
        print(f"{len(expected)} episodes here; on one node: identical={alone == expected}")
        unsound += alone != expected
        with two_nodes() as nodes:
            for number in range(asked.runs):
                rng = random.Random(f"{asked.seed}/{number}")
                verdict = disturbed(nodes, episodes, place / f"run{number}", expected, rng)
                unsound += not verdict.sound
                print(number, "sound" if verdict.sound else "NOT SOUND", verdict, flush=True)
    print(f"{asked.runs} runs on two nodes, {unsound} not sound")
    return min(unsound, 1)


if __name__ == "__main__":
    raise SystemExit(main())
