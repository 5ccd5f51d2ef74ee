"""The audit: runs a sample of finished episodes again, alone and in this process, and compares.

An episode's outcome must depend on its spec and the policy only. The audit tests this on the user's
own configuration.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from proctor.callbacks.base import Callback
from proctor.engine.engine import Engine
from proctor.engine.inference import Inference, ThreadInference
from proctor.engine.rollout_settings import RolloutSettings
from proctor.engine.scheduler import Scheduler, SchedulerLimits
from proctor.engine.worker.episode import DIGEST
from proctor.errors import UsageError
from proctor.fingerprint import PROTOCOL_FORMAT, changed_fields, describe_changes
from proctor.policies.base import Policy
from proctor.runs.folder import RunRecord
from proctor.runs.journal import EpisodeRecord, make_record
from proctor.runs.replay import EpisodeReplay
from proctor.types import EpisodeResult, EpisodeSpec

_WATCHDOG_S = 120.0
"""Watchdog limit of an audit in seconds, independent of the run's flag."""


def audit(
    settings: RolloutSettings,
    policy: Policy,
    plan: Sequence[EpisodeSpec],
    rows: Sequence[EpisodeRecord],
    n_episodes: int,
    on_result: Callable[[EpisodeReplay], None],
    *,
    exact: bool = True,
) -> list[EpisodeReplay]:
    """Run ``n_episodes`` of the recorded episodes again, each on a new simulator.

    A fixed seed chooses them, spread over the tasks. Errored episodes are left out. ``exact``
    requires the same bits; otherwise the same outcome and nearly the same returns are enough.
    """
    specs = {spec.key: spec for spec in plan}
    for row in rows:
        if row.key not in specs:
            raise UsageError(
                f"the run's journal has {row.key}, which its run.json does not plan",
                code="run.unplanned-episode",
            )
        if (found := row.disagreement(specs[row.key])) is not None:
            raise UsageError(
                f"the run's journal has {row.key} of another episode: {found}",
                code="run.episode-mismatch",
            )
    sound = [row for row in rows if row.outcome.counts]
    replays = []
    inference = ThreadInference(policy, settings.action)
    with contextlib.closing(inference):
        for row in _sample(sound, n_episodes):
            # A policy that broke the simulator could break this process too: use a worker process.
            in_process = row.outcome.is_complete
            again = run_alone(settings, inference, specs[row.key], in_process=in_process)
            replay = EpisodeReplay(row, again, exact)
            on_result(replay)
            replays.append(replay)
    return replays


def require_unchanged(record: RunRecord, protocol: dict[str, Any], path: Path) -> None:
    """Refuse to audit a run whose policy, benchmark or versions have changed."""
    changed = changed_fields(record.protocol, protocol)
    changed.pop("digest", None)  # changes what can be compared, not the episodes
    if changed:
        raise UsageError(
            f"{path} cannot be audited: the definition of its episodes has changed "
            f"({describe_changes(changed)})",
            code="run.changed",
        )


def why_not_exact(record: RunRecord, *, bit_exact: bool) -> str | None:
    """Return why an episode may differ in its bits; None if it must not."""
    if record.protocol.get("format") != PROTOCOL_FORMAT:
        return "the run's protocol has another format than this version of Proctor writes"
    definition = record.protocol.get("digest", 1)
    if definition != DIGEST:
        return f"the run has digests of version {definition}, this Proctor of version {DIGEST}"
    if not (record.bit_reproducible and bit_exact):
        return "bits depend on the load when a policy is on an accelerator with --eval.strict=false"
    return None


def run_alone(
    settings: RolloutSettings, inference: Inference, spec: EpisodeSpec, *, in_process: bool
) -> EpisodeRecord:
    """Run one episode on a new simulator, and retry it once if the simulator fails.

    A failure that repeats is caused by the policy.
    """
    flags = replace(settings.flags, use_async_envs=not in_process, watchdog_s=_WATCHDOG_S)
    scheduler = Scheduler([spec], SchedulerLimits(max_batch=1, max_attempts=2))
    collector = _ResultCollector()
    with Engine(replace(settings, flags=flags), inference, scheduler, n_workers=1) as engine:
        engine.run([collector])
    return make_record(collector.results[0])


class _ResultCollector(Callback):
    """Keeps results in memory."""

    def __init__(self) -> None:
        self.results: list[EpisodeResult] = []

    def on_episode_end(self, result: EpisodeResult) -> None:
        self.results.append(result)


def _sample(rows: Sequence[EpisodeRecord], n: int) -> list[EpisodeRecord]:
    """Choose rows at random with a fixed seed: one of every task before a second of any."""
    shuffled = sorted(rows, key=lambda row: row.key)
    random.Random(0).shuffle(shuffled)  # noqa: S311  repeatable, not secret
    chosen_of: dict[tuple[str, int], int] = {}
    rounds: list[tuple[int, int, EpisodeRecord]] = []
    for row in shuffled:
        task = (row.suite, row.task_id)
        rounds.append((chosen_of.get(task, 0), len(rounds), row))
        chosen_of[task] = chosen_of.get(task, 0) + 1
    return [row for *_, row in sorted(rounds, key=lambda entry: entry[:2])[:n]]
