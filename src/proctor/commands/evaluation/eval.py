"""``proctor eval``: evaluate a policy on a benchmark."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proctor.commands.shared.arguments import parse_flags
from proctor.commands.shared.notices import print_notices
from proctor.errors import SimulatorUnavailable, exit_code_of, strip_control_codes
from proctor.permissions import permission_flags
from proctor.system.collection import collection_paused

if TYPE_CHECKING:
    from rich.console import Console

    from proctor.callbacks.base import Callback
    from proctor.callbacks.interrupts import Interrupts
    from proctor.config.evaluation import EvalConfig
    from proctor.evaluation.rollout_context import RolloutContext
    from proctor.evaluation.run import Evaluation
    from proctor.features import ActionSpec
    from proctor.runs.journal import EpisodeRecord
    from proctor.stats.anytime import MonitoredRates

EXIT_ERRORED_EPISODES = 1
_USAGE = """\
proctor eval --policy.type=NAME --env.type=NAME [--FLAG=VALUE ...]
proctor eval --policy.path=A,B --robot.type=NAME [--FLAG=VALUE ...]

Evaluate a policy. Results are written to the run folder as episodes end. An interrupted run is
completed by: proctor eval --resume --output_dir=FOLDER and the flags that permit something, such
as MODULE:NAME and --wandb.enable (a file cannot give these)

Several checkpoints (--policy.path=a,b or a pattern, 'checkpoints/*'), policy types
(--policy.type=expert,random), seeds (--seed=1,2) or latencies (--eval.latency_steps=0,2,4) are
evaluated one after the other, each in its own folder, and compared in one table.

With --robot.type, policies are tried on a robot: blind, in random order, judged by a person. See
proctor eval --help robot.
"""


def run(words: list[str]) -> int:
    """Run the command and return its exit code."""
    from proctor.commands.robots.eval_robot import evaluate_on_robot, is_for_robot
    from proctor.config.evaluation import EvalConfig

    if is_for_robot(words):
        return evaluate_on_robot(words, _USAGE)
    given = parse_flags(EvalConfig, words, _USAGE)
    if given is None:
        return 0
    from proctor.commands.evaluation.eval_settings import reference_run, resumed_run
    from proctor.commands.evaluation.eval_several import evaluate_several, variants_of
    from proctor.config.flags.merging import merge_config_file, merge_settings

    variants = variants_of(merge_config_file(given))
    if len(variants) > 1:
        return evaluate_several(variants, given, _evaluate_one_of_several)
    settings = merge_settings(
        given, resumed=resumed_run, reference=reference_run, with_file=variants[0].settings
    )
    return evaluate_and_show(settings)[1]


Show = Callable[["Evaluation", "ActionSpec", "Console"], None]


def evaluate_and_show(
    settings: dict[str, Any],
    show: Show | None = None,
    name: str | None = None,
    resume_as: str = "proctor eval",
) -> tuple[RolloutContext[EvalConfig], int]:
    """Evaluate, show the results, and return the prepared run and the exit code.

    ``name`` is the name of one of several runs; it is printed once the run is prepared.
    ``resume_as`` is the command that completes an interrupted run.
    """
    from proctor.callbacks.interrupts import Interrupts

    with Interrupts() as interrupts:
        return _evaluate_and_show(settings, interrupts, show or _show, name, resume_as)


def _evaluate_and_show(
    settings: dict[str, Any], interrupts: Interrupts, show: Show, name: str | None, resume_as: str
) -> tuple[RolloutContext[EvalConfig], int]:
    from proctor.config.builder import build
    from proctor.config.evaluation import EvalConfig
    from proctor.evaluation.preparing import prepare

    with collection_paused():
        prepared = prepare(build(EvalConfig, settings))
    from rich.console import Console  # from here on simulators start in other processes

    from proctor.callbacks.progress import Progress, VideoProgress
    from proctor.evaluation.notices import start_notices
    from proctor.evaluation.run import run_evaluation
    from proctor.report.html.tables import table_console
    from proctor.runs.journal import JOURNAL_FILE

    if name is not None:
        print(strip_control_codes(f"{name}:"), file=sys.stderr)
    unseen = [start_notices(prepared)]
    _say_what_renders(prepared)

    def make_callbacks(before: Sequence[EpisodeRecord], how: MonitoredRates) -> list[Callback]:
        console = Console(stderr=True)
        headline = _headline(prepared, len(before))
        console.print(headline, highlight=False, soft_wrap=True, markup=False)
        print_notices(unseen.pop(), console)
        return [Progress(prepared.plan, before, console, how), interrupts]

    def make_video_callbacks(episodes: int) -> list[Callback]:
        return [VideoProgress(episodes, Console(stderr=True)), interrupts]

    try:
        evaluation = run_evaluation(prepared, settings, make_callbacks, make_video_callbacks)
    except KeyboardInterrupt as stop:
        _say_how_to_resume(prepared, settings, resume_as)
        _say_where_the_report_is(prepared.folder.path)
        return prepared, exit_code_of(stop)
    except SimulatorUnavailable as error:
        _say_what_cannot_be_opened(prepared, error)
        return prepared, EXIT_ERRORED_EPISODES
    for notices in unseen:  # no episodes were left to run
        print_notices(notices, Console(stderr=True))
    show(evaluation, prepared.benchmark.action, table_console())
    if not evaluation.complete and evaluation.stopped is None:
        unreadable = evaluation.planned - len(evaluation.rows)
        print(
            f"proctor: error: {unreadable} episodes have no readable line in "
            f"{evaluation.path / JOURNAL_FILE}; add --resume to run them again",
            file=sys.stderr,
        )
        return prepared, EXIT_ERRORED_EPISODES
    return prepared, EXIT_ERRORED_EPISODES if evaluation.n_errors else 0


def _headline(prepared: RolloutContext[EvalConfig], done: int) -> str:
    """Return the line that describes the run."""
    n_tasks = len({spec.task for spec in prepared.plan})
    planned = len(prepared.plan)
    resumed = f" ({done} done before)" if done else ""
    return (
        f"{prepared.policy.spec.name} on {prepared.benchmark.name}: {planned} "
        f"episode{'s' * (planned != 1)} of {n_tasks} task{'s' * (n_tasks != 1)}{resumed} -> "
        f"{prepared.folder.path}"
    )


def _say_what_renders(prepared: RolloutContext[EvalConfig]) -> None:
    """Print the drawing process, or the chosen GL backend where MUJOCO_GL is not set."""
    from proctor.system.graphics.gl import describe_chosen_backend
    from proctor.system.graphics.gl_probe import RENDERING_OFF
    from proctor.system.platform.environment import RENDERER_VARIABLE

    drawn = prepared.environment.get(RENDERER_VARIABLE)
    if drawn is not None:
        print(f"rendering with {drawn}", file=sys.stderr)
    if prepared.environment.get("MUJOCO_GL", RENDERING_OFF[0]) not in RENDERING_OFF:
        choice = describe_chosen_backend()
        if choice is not None:
            print(choice, file=sys.stderr)


def _say_what_cannot_be_opened(
    prepared: RolloutContext[EvalConfig], error: SimulatorUnavailable
) -> None:
    """Print one line; the traceback goes to the simulators' log."""
    log = prepared.folder.path / "workers.log"
    with contextlib.suppress(OSError), log.open("a", errors="replace") as file:
        file.write(f"{error.__cause__}\n")  # even on a full disk, print the line below
    where = f"traceback: {log}; `proctor doctor` tries all that is installed"
    print(strip_control_codes(f"proctor: error: {error} ({where})"), file=sys.stderr)


def _say_how_to_resume(
    prepared: RolloutContext[EvalConfig], settings: Mapping[str, Any], resume_as: str
) -> None:
    from proctor.runs.journal import read_journal

    path = prepared.folder.path
    again = permission_flags(settings, but=("output_dir",))
    done = len(read_journal(path).rows)
    print(
        f"interrupted: {done} of {len(prepared.plan)} episodes are in {path}; continue with\n"
        f"  {resume_as} --resume --output_dir={shlex.quote(str(path))}{again}",
        file=sys.stderr,
    )


def _show(evaluation: Evaluation, action: ActionSpec, console: Console) -> None:
    from proctor.evaluation.notices import out_of_range_note
    from proctor.report.html.tables import results_table
    from proctor.report.run.judge_agreement import judge_agreement
    from proctor.report.run.starts import start_warnings
    from proctor.report.run.summary import at_end_text, pass_rates, pass_text, suite_text

    console.print(
        results_table(evaluation.rows, evaluation.monitored, console.width, evaluation.scores)
    )
    console.print(f"\n{evaluation.headline} {evaluation.tally}", style="bold", highlight=False)
    added = evaluation.tally
    for line in (suite_text(added), at_end_text(added), pass_text(pass_rates(evaluation.rows))):
        if line is not None:
            console.print(line, highlight=False, soft_wrap=True, markup=False)
    _show_contamination(evaluation, console)
    _show_robustness(evaluation, console)
    if (agreement := judge_agreement(evaluation.rows)) is not None:
        console.print(str(agreement), highlight=False, soft_wrap=True, markup=False)
    _say_what_results_mean(evaluation, console)
    note = out_of_range_note(evaluation.rows, action)
    if note is not None:
        console.print(f"note: {note}", highlight=False, soft_wrap=True)
    renders = sum(row.renders or 0 for row in evaluation.rows)
    console.print(
        f"{sum(row.steps or 0 for row in evaluation.rows):,} steps, {renders:,} images rendered",
        highlight=False,
    )
    if evaluation.stopped is not None:
        console.print(
            f"stopped: {evaluation.stopped} ({len(evaluation.rows)} of {evaluation.planned} "
            "planned episodes were run); the intervals above hold although it could stop itself",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
    elif evaluation.history.fixed is not True:
        console.print(
            f"{evaluation.history.text}; 95% interval: {evaluation.tally.interval_kind}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
    for warning in start_warnings(evaluation.rows):
        print(strip_control_codes(f"warning: {warning}"), file=sys.stderr)
    _say_what_came_of_filming(evaluation)
    if evaluation.rollouts is not None:
        print(f"rollouts: {evaluation.rollouts} (proctor data view {evaluation.rollouts})")
    console.print(f"results: {evaluation.path}", highlight=False, soft_wrap=True, markup=False)
    _say_where_the_report_is(evaluation.path)


def _show_contamination(evaluation: Evaluation, console: Console) -> None:
    """Print which starts were in the policy's training data, if it was trained."""
    found = evaluation.contamination
    for line in () if found is None else (found.text, found.nearest_text):
        if line is not None:
            console.print(line, highlight=False, soft_wrap=True, markup=False)


def _show_robustness(evaluation: Evaluation, console: Console) -> None:
    """Print perturbed against clean episodes, if tasks are perturbed."""
    if (found := evaluation.robustness) is None:
        return
    from proctor.report.robustness.table import print_robustness

    console.print()
    print_robustness(found, evaluation.sensitivity, console)


def _evaluate_one_of_several(settings: dict[str, Any], name: str) -> tuple[Path, int]:
    prepared, code = evaluate_and_show(settings, _show_briefly, name)
    return prepared.folder.path, code


def _show_briefly(evaluation: Evaluation, action: ActionSpec, console: Console) -> None:
    console.print(f"{evaluation.headline} {evaluation.tally}", style="bold", highlight=False)
    _show_contamination(evaluation, console)
    _say_what_results_mean(evaluation, console)
    _say_what_came_of_filming(evaluation)


def _say_what_results_mean(evaluation: Evaluation, console: Console) -> None:
    """Print the warnings of policy and benchmark again, beside the results."""
    for warning in evaluation.warnings:
        line = strip_control_codes(f"warning: {warning}")
        console.print(line, style="bold red", highlight=False, soft_wrap=True, markup=False)


def _say_what_came_of_filming(evaluation: Evaluation) -> None:
    filmed = evaluation.filmed
    for warning in filmed.warnings:
        print(strip_control_codes(f"warning: {warning}"), file=sys.stderr)
    if filmed.note is not None:
        print(strip_control_codes(filmed.note))
    if filmed.videos:
        print(f"videos: {filmed.videos} in {evaluation.path / 'videos'}")


def _say_where_the_report_is(path: Path) -> None:
    from proctor.report.run.page import REPORT_FILE

    print(f"report: {path / REPORT_FILE}")
