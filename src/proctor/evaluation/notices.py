"""What a user should know of a run: shown by the command line and by the Python API alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from proctor.config.base import RunConfig
from proctor.config.evaluation import EvalConfig
from proctor.config.unused_flags import unused_in_run
from proctor.evaluation.rollout_context import RolloutContext
from proctor.evaluation.run import Evaluation
from proctor.features import ActionSpec
from proctor.policies.compatibility import read_alike_text
from proctor.report.protocol_differences import changed_protocol
from proctor.report.worlds import planned_repeats, world_warnings
from proctor.runs.folder import RunFolder
from proctor.runs.journal import EpisodeRecord


@dataclass(frozen=True)
class Notices:
    """Lines for the user."""

    warnings: tuple[str, ...] = ()
    """What changes how results are to be read."""
    notes: tuple[str, ...] = ()
    """What should be seen once: flags that change nothing, what a checkpoint's reader noticed."""


def notices_of(context: RolloutContext[RunConfig]) -> Notices:
    """Return what is to be shown before a run starts, be it an evaluation or a recording."""
    config, benchmark = context.config, context.benchmark
    notes = (*config.notes, *unused_in_run(config), *benchmark.notes, *context.policy.spec.notes)
    warnings = (*_of_comparison(context), *benchmark.warnings, *_of_plan(context))
    return Notices((*warnings, *_of_texts(context)), notes)


def notices_after(evaluation: Evaluation, action: ActionSpec) -> Notices:
    """Return what is to be shown once an evaluation has ended."""
    notes = (out_of_range_note(evaluation.rows, action), evaluation.filmed.note)
    return Notices(
        (*world_warnings(evaluation.rows), *evaluation.filmed.warnings),
        tuple(note for note in notes if note is not None),
    )


def out_of_range_note(rows: Sequence[EpisodeRecord], action: ActionSpec) -> str | None:
    """Say in how many episodes actions were out of the benchmark's range, if in any."""
    left = sum(bool(row.clipped_steps) for row in rows)
    if not left:
        return None
    fate = "are clipped" if action.clipped else "are not clipped but played as they are"
    where = f"in {left} episode{'s' * (left != 1)}"
    return f"{where} the policy left the action range; such actions {fate}"


def _of_texts(context: RolloutContext[RunConfig]) -> Iterator[str]:
    """Name two tasks' texts that differ, where the policy reads them as one."""
    policy = context.policy
    pair = policy.read_alike(spec.task for spec in context.plan)
    if pair is not None:
        yield f"{read_alike_text(policy.spec.name, pair)}, so it plays these tasks as one"


def _of_comparison(context: RolloutContext[RunConfig]) -> Iterator[str]:
    """Name what differs, besides the policy, from the run to compare with."""
    config = context.config
    against = config.against if isinstance(config, EvalConfig) else None
    reference = None if against is None else RunFolder(against).read()
    if reference is not None:
        yield from changed_protocol(reference.protocol, context.protocol())


def _of_plan(context: RolloutContext[RunConfig]) -> Iterator[str]:
    """Say that an evaluation plays worlds more than once."""
    repeats = planned_repeats(context.plan) if isinstance(context.config, EvalConfig) else None
    if repeats is not None:
        yield repeats
