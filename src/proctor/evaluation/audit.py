"""The audit: runs a sample of finished episodes again, alone and in this process, and compares.

An episode's outcome must depend on its spec and the policy only. This checks it on the user's own
configuration instead of asking them to believe it.
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
from proctor.engine.episode import DIGEST
from proctor.engine.inference import Inference, ThreadInference
from proctor.engine.rollout_settings import RolloutSettings
from proctor.engine.scheduler import Scheduler, SchedulerLimits
from proctor.errors import UsageError
from proctor.fingerprint import PROTOCOL_FORMAT, changed_fields, describe_changes
from proctor.policies.base import Policy
from proctor.runs.folder import RunRecord
from proctor.runs.journal import EpisodeRecord, make_record
from proctor.runs.replay import EpisodeReplay
from proctor.types import EpisodeResult, EpisodeSpec

_WATCHDOG_S = 120.0
"""Of an audit, whatever the run's own limit was."""


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
    """Run ``n_episodes`` of the recorded ones again, each on a simulator of its own.

    Which ones is decided by a fixed seed, spread over the tasks. Errored episodes are left out.
    ``exact`` asks for the same bits, else for the same outcome and nearly the same returns.

    Raises:
        UsageError: the journal holds episodes that are not planned.
    """
    specs = {spec.key: spec for spec in plan}
    for row in rows:
        if row.key not in specs:
            raise UsageError(f"the run's journal has {row.key}, which its run.json does not plan")
        if (found := row.disagreement(specs[row.key])) is not None:
            raise UsageError(f"the run's journal has {row.key} of another episode: {found}")
    sound = [row for row in rows if row.outcome.counts]
    replays = []
    inference = ThreadInference(policy, settings.action)
    with contextlib.closing(inference):
        for row in _sample(sound, n_episodes):
            # A policy that broke the simulator may break this process too: it is given another.
            in_process = row.outcome.is_complete
            again = run_alone(settings, inference, specs[row.key], in_process=in_process)
            replay = EpisodeReplay(row, again, exact)
            on_result(replay)
            replays.append(replay)
    return replays


def require_unchanged(record: RunRecord, protocol: dict[str, Any], path: Path) -> None:
    """Refuse to audit a run whose policy, benchmark or versions are not what they were.

    Raises:
        UsageError: naming what has changed.
    """
    changed = changed_fields(record.protocol, protocol)
    changed.pop("digest", None)  # that changes what can be compared, and no episode
    if changed:
        raise UsageError(
            f"{path} cannot be audited: what defines its episodes has changed since "
            f"({describe_changes(changed)})"
        )


def why_not_exact(record: RunRecord, *, bit_exact: bool) -> str | None:
    """Return why an episode need not be the same bit by bit; None where it must be."""
    if record.protocol.get("format") != PROTOCOL_FORMAT:
        return "another version of Proctor made them, in another way"
    definition = record.protocol.get("digest", 1)
    if definition != DIGEST:
        return f"those of the run are of definition {definition}, ours of {DIGEST}"
    if not (record.bit_reproducible and bit_exact):
        return "bits depend on the load when a policy is on an accelerator with --eval.strict=false"
    return None


def run_alone(
    settings: RolloutSettings, inference: Inference, spec: EpisodeSpec, *, in_process: bool
) -> EpisodeRecord:
    """Run one episode on a fresh simulator, a second time if it breaks: that tells who did it."""
    flags = replace(settings.flags, use_async_envs=not in_process, watchdog_s=_WATCHDOG_S)
    scheduler = Scheduler([spec], SchedulerLimits(max_batch=1, max_attempts=2))
    kept = _Keep()
    with Engine(replace(settings, flags=flags), inference, scheduler, n_workers=1) as engine:
        engine.run([kept])
    return make_record(kept.results[0])


class _Keep(Callback):
    """A recorder that keeps results in memory."""

    def __init__(self) -> None:
        self.results: list[EpisodeResult] = []

    def on_episode_end(self, result: EpisodeResult) -> None:
        self.results.append(result)


def _sample(rows: Sequence[EpisodeRecord], n: int) -> list[EpisodeRecord]:
    """Choose rows at random but repeatably, a round over all tasks before a second of any."""
    shuffled = sorted(rows, key=lambda row: row.key)
    random.Random(0).shuffle(shuffled)  # noqa: S311  repeatable, not secret
    seen: dict[tuple[str, int], int] = {}
    rounds: list[tuple[int, int, EpisodeRecord]] = []
    for row in shuffled:
        task = (row.suite, row.task_id)
        rounds.append((seen.get(task, 0), len(rounds), row))
        seen[task] = seen.get(task, 0) + 1
    return [row for *_, row in sorted(rounds, key=lambda entry: entry[:2])[:n]]
