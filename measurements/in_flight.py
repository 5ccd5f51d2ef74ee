"""What a second batch in flight gains: the same episodes with one policy and with replicas of it.

    python measurements/in_flight.py --in_flight=2 --workers=14 [the flags of proctor eval ...]

The replicas share their weights; each has its own thread (and on a GPU its own stream and graphs).
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from proctor.config.builder import build
from proctor.config.evaluation import EvalConfig
from proctor.config.flags import split_argv
from proctor.engine.engine import Engine
from proctor.engine.inference import ThreadInference
from proctor.engine.replicated import ReplicatedInference
from proctor.engine.scheduler import Bounds, Scheduler
from proctor.evaluation.run import prepare
from proctor.policies.runtime.chunk_policy import ChunkPolicy


def seconds(prepared: Any, in_flight: int, n_workers: int) -> float:
    """Return what the plan takes with so many batches in flight, opening simulators included."""
    first = prepared.policy
    policies = [first]
    policies += [ChunkPolicy(first.parts, str(first.device)) for _ in range(in_flight - 1)]
    action = prepared.benchmark.action
    inference = ReplicatedInference([ThreadInference(policy, action) for policy in policies])
    setup = prepared.players.engine_setup(inference, n_workers, in_process=False)
    scheduler = Scheduler(prepared.plan, Bounds(max_batch=n_workers))
    start = time.perf_counter()
    with Engine(setup, scheduler) as engine:
        engine.run([])
        print(f"in flight {in_flight}: {engine.pulse()}")
    took = time.perf_counter() - start
    inference.close()
    return took


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--in_flight", type=int, default=2)
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--rounds", type=int, default=3)
    mine, flags = parser.parse_known_args()
    prepared = prepare(build(EvalConfig, split_argv(flags, ())[1]))
    prepared.folder.path.mkdir(parents=True, exist_ok=True)  # workers log there
    for _ in range(mine.rounds):
        one, more = (seconds(prepared, n, mine.workers) for n in (1, mine.in_flight))
        print(f"1: {one:.2f} s, {mine.in_flight}: {more:.2f} s, {one / more:.3f}x")


if __name__ == "__main__":
    main()
