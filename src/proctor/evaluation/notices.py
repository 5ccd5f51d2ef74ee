"""Warnings and notes on a run, for the command line and the Python API."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from proctor.benchmarks.training_starts import PUBLISHED_NOTE, has_published_starts
from proctor.config.base import RunConfig
from proctor.config.evaluation import EvalConfig
from proctor.config.flags.unused_flags import unused_in_run
from proctor.config.recording import RecordConfig
from proctor.evaluation.rollout_context import RolloutContext
from proctor.evaluation.run import Evaluation
from proctor.features import ActionSpec
from proctor.policies.compatibility import indistinguishable_text
from proctor.report.compare.protocol_differences import changed_protocol
from proctor.report.run.selection import checkpoint_selection_note
from proctor.report.run.starts import planned_repeats, start_warnings
from proctor.report.run.warnings import journal_warnings
from proctor.runs.folder import RunFolder
from proctor.runs.journal import EpisodeRecord, read_journal


@dataclass(frozen=True)
class Notices:
    """Lines for the user."""

    warnings: tuple[str, ...] = ()
    """What changes the meaning of the results."""
    notes: tuple[str, ...] = ()
    """What the user should see once: flags without effect, notes on a checkpoint."""


def start_notices(context: RolloutContext[RunConfig]) -> Notices:
    """Return the notices to show before an evaluation or recording starts."""
    config, benchmark = context.config, context.benchmark
    notes = (
        *(*config.notes, *unused_in_run(config), *benchmark.notes, *context.policy.spec.notes),
        *_of_recorded_starts(context),
        *context.plan_notes,
    )
    warnings = (*_of_journal(context), *_of_comparison(context), *context.warnings)
    warnings = (*warnings, *_of_plan(context), *_of_selection(context))
    return Notices((*warnings, *_of_texts(context)), notes)


def end_notices(evaluation: Evaluation, action: ActionSpec) -> Notices:
    """Return the notices to show after an evaluation."""
    notes = (out_of_range_note(evaluation.rows, action), evaluation.filmed.note)
    return Notices(
        (*start_warnings(evaluation.rows), *evaluation.filmed.warnings),
        tuple(note for note in notes if note is not None),
    )


def out_of_range_note(rows: Sequence[EpisodeRecord], action: ActionSpec) -> str | None:
    """Return how many episodes left the benchmark's action range; None if no episode did."""
    left = sum(bool(row.clipped_steps) for row in rows)
    if not left:
        return None
    fate = "are clipped" if action.clipped else "are not clipped but executed as they are"
    where = f"in {left} episode{'s' * (left != 1)}"
    return f"{where} the policy left the action range; such actions {fate}"


def _of_recorded_starts(context: RolloutContext[RunConfig]) -> Iterator[str]:
    """Say that demonstrations start where evaluations do."""
    config, benchmark = context.config, context.benchmark
    if not isinstance(config, RecordConfig):
        return
    if not has_published_starts(benchmark):
        if config.record.published:
            yield f"--record.starts has no effect: {benchmark.name} has no published init states"
    elif config.record.published or not benchmark.places_scenes:
        yield PUBLISHED_NOTE[:1].lower() + PUBLISHED_NOTE[1:]


def _of_selection(context: RolloutContext[RunConfig]) -> Iterator[str]:
    """Say that the planned episodes selected the checkpoint."""
    path = getattr(context.config.played_policy, "path", None)
    if isinstance(context.config, EvalConfig) and path is not None:
        note = checkpoint_selection_note(Path(path), context.plan)
        if note is not None:
            yield note


def _of_texts(context: RolloutContext[RunConfig]) -> Iterator[str]:
    """Name two different instructions that the policy cannot tell apart."""
    policy = context.policy
    pair = policy.indistinguishable_tasks(spec.task for spec in context.plan)
    if pair is not None:
        told = indistinguishable_text(policy.spec.name, pair)
        yield f"{told}, so it cannot tell these tasks apart"


def _of_journal(context: RolloutContext[RunConfig]) -> list[str]:
    """Name the damaged lines in the journal of a resumed run: their episodes are run again."""
    if not context.config.resume:
        return []
    folder = context.folder.path
    return journal_warnings(folder, read_journal(folder).damaged)


def _of_comparison(context: RolloutContext[RunConfig]) -> Iterator[str]:
    """Name protocol differences, besides the policy, from the run of --against."""
    config = context.config
    against = config.against if isinstance(config, EvalConfig) else None
    reference = None if against is None else RunFolder(against).read()
    if reference is not None:
        yield from changed_protocol(reference.protocol, context.protocol())


def _of_plan(context: RolloutContext[RunConfig]) -> Iterator[str]:
    """Warn if an evaluation runs an initial state more than once."""
    repeats = planned_repeats(context.plan) if isinstance(context.config, EvalConfig) else None
    if repeats is not None:
        yield repeats
