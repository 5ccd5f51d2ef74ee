"""The stop rules of a run: --eval.stop_when, and the paired test of --against."""

from __future__ import annotations

from typing import Any

from proctor.callbacks.early_stopping import EarlyStopping
from proctor.config.evaluation import EvalConfig
from proctor.errors import UsageError
from proctor.report.compare.pairing import planned_partners
from proctor.report.compare.protocol_differences import require_same_worlds
from proctor.report.run.run import Run, load_run
from proctor.stats.stopping import EpisodeOutcome, PairedTest, StopRule, parse_stop_rule
from proctor.types import EpisodeSpec


def make_early_stopping(
    config: EvalConfig, plan: list[EpisodeSpec], protocol: dict[str, Any]
) -> EarlyStopping:
    """Return the callback that decides when the run of ``plan`` stops."""
    rule = parse_stop_rule(config.eval.stop_when)
    rules: list[StopRule] = [] if rule is None else [rule]
    if config.against is not None:
        reference = load_run(config.against).require_rate()
        require_same_worlds(
            reference.record.protocol,
            protocol,
            f"--against: {config.against} and this run",
            "leave out the --env flags to run its own",
        )
        shared = _whole_rounds(plan, reference)
        rules.append(PairedTest(shared, str(config.against), config.alpha))
    return EarlyStopping(plan, rules)


def _whole_rounds(plan: list[EpisodeSpec], reference: Run) -> list[EpisodeOutcome]:
    """Return the reference's outcomes in the rounds that it holds of all tasks, up to a gap.

    A round with some tasks only would test those tasks alone. After the first gap, an interrupted
    reference holds only episodes that ended quickly.
    """
    partners = planned_partners(plan, reference)
    rounds: dict[int, list[EpisodeSpec]] = {}
    for spec in plan:
        rounds.setdefault(spec.index, []).append(spec)
    whole: list[EpisodeOutcome] = []
    for _, specs in sorted(rounds.items()):
        if not all(spec.key in partners for spec in specs):
            break
        for spec in specs:
            row = partners[spec.key]
            started = spec.started._replace(measured=row.start)
            whole.append(EpisodeOutcome(spec.key, started, row.outcome))
    if not partners:
        raise UsageError(
            f"--against: {reference.path} has none of the planned episodes "
            "(task, seed, init state); leave out --seed and --env.task to run its own",
            code="compare.no-shared-episodes",
        )
    if not whole:
        n_tasks = len({spec.task.key for spec in plan})
        raise UsageError(
            f"--against: {reference.path} does not hold episode {min(rounds)} of all {n_tasks} "
            "planned tasks, so no round can be compared: complete it with --resume, or choose its "
            "tasks with --env.task",
            code="compare.no-complete-round",
        )
    return whole
