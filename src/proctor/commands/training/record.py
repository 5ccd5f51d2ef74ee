"""``proctor record``: record a policy's or a robot's episodes as a LeRobot dataset."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Any

from proctor.commands.shared.all_flags import command_configs
from proctor.commands.shared.arguments import choose_config, parse_flags
from proctor.commands.shared.notices import print_notices
from proctor.errors import SimulatorUnavailable, UsageError, exit_code_of, strip_control_codes
from proctor.permissions import RECORDING_PLACES, permission_flags
from proctor.system.collection import collection_paused
from proctor.system.files import display_path

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rich.console import Console

    from proctor.callbacks.base import Callback
    from proctor.callbacks.interrupts import Interrupts
    from proctor.config.flags.merging import EarlierRun
    from proctor.config.recording import RecordConfig
    from proctor.evaluation.recording import RecordedCounts, RecordingResult
    from proctor.evaluation.rollout_context import RolloutContext

EXIT_INCOMPLETE = 1
_ROBOT_USAGE = """\
proctor record --robot.type=NAME --teleop.type=NAME --dataset.repo_id=USER/NAME
               --dataset.single_task=TEXT [--FLAG=VALUE ...]

Record episodes of a robot that a person or a script drives. Each episode is on the disk when it
ends. Esc, Ctrl-C and SIGTERM keep the running episode too. More episodes: --resume=true.
Exit code 1: fewer episodes than requested.
"""
_USAGE = """\
proctor record --policy.type=NAME --env.type=NAME --dataset.repo_id=USER/NAME [--FLAG=VALUE ...]

proctor record --robot.type=NAME --teleop.type=NAME ... (see proctor record --help robot)

Run a policy and record its successful episodes as a dataset, until every task has
--record.n_episodes demonstrations. An interrupted recording is completed by:
proctor record --resume --dataset.root=FOLDER and the flags that permit something
Exit code 1: a task has fewer demonstrations than requested.
"""


def run(words: list[str]) -> int:
    """Run the command and return its exit code."""
    from proctor.callbacks.interrupts import Interrupts
    from proctor.config.builder import build
    from proctor.config.flags.merging import merge_settings
    from proctor.config.recording import RecordConfig

    if choose_config(command_configs("record"), words) is not RecordConfig:
        return _run_robot(words)
    given = parse_flags(RecordConfig, words, _USAGE)
    if given is None:
        return 0
    settings = merge_settings(given, resumed=resumed_recording, places=RECORDING_PLACES)
    with Interrupts() as interrupts:
        return _record_and_show(build(RecordConfig, settings), settings, interrupts)


def _run_robot(words: list[str]) -> int:
    from proctor.commands.robots.record_robot import record_robot
    from proctor.config.flags.merging import merge_settings
    from proctor.config.robot_recording import RobotRecordConfig

    given = parse_flags(RobotRecordConfig, words, _ROBOT_USAGE)
    if given is None:
        return 0
    return record_robot(merge_settings(given, places=RECORDING_PLACES))


def _record_and_show(config: RecordConfig, settings: dict[str, Any], interrupts: Interrupts) -> int:
    """Record, print the results, and return the exit code."""
    from rich.console import Console

    from proctor.callbacks.progress import RecordingProgress, RecordingTarget
    from proctor.evaluation.notices import start_notices
    from proctor.evaluation.recording import RecordingInterrupted, prepare, run_recording
    from proctor.report.html.tables import table_console

    with collection_paused():
        prepared, shown = prepare(config)
    n_tasks = len(prepared.benchmark.tasks())
    wanted = config.record.n_episodes * n_tasks

    def make_callbacks(before: RecordedCounts, in_dataset: Callable[[], int]) -> list[Callback]:
        console = Console(stderr=True)
        line = _headline(prepared, wanted, before.total)
        console.print(line, highlight=False, soft_wrap=True, markup=False)
        print_notices(start_notices(prepared), console)
        target = RecordingTarget(n_tasks, before.wanted, before.finished, config.record.kept)
        return [RecordingProgress(target, in_dataset, console), interrupts]

    try:
        recorded = run_recording(prepared, shown, settings, make_callbacks)
    except KeyboardInterrupt as stop:
        counts = stop.counts if isinstance(stop, RecordingInterrupted) else None
        _say_how_to_resume(config, settings, counts, wanted)
        return exit_code_of(stop)
    except SimulatorUnavailable as error:
        print(strip_control_codes(f"proctor: error: {error}"), file=sys.stderr)
        return EXIT_INCOMPLETE
    _show(recorded, table_console())
    return 0 if recorded.complete else EXIT_INCOMPLETE


def _headline(prepared: RolloutContext[RecordConfig], wanted: int, kept: int) -> str:
    """Return the line that describes the recording."""
    n_tasks = len(prepared.benchmark.tasks())
    before = f" ({kept} recorded before)" if kept else ""
    labels = "" if prepared.config.record.label is None else ", labelled by its expert"
    return (
        f"{prepared.policy.spec.name} on {prepared.benchmark.name}{labels}: {wanted} "
        f"demonstrations of {n_tasks} task{'s' * (n_tasks != 1)}{before} -> "
        f"{display_path(prepared.config.dataset.folder)}"
    )


def _say_how_to_resume(
    config: RecordConfig, settings: dict[str, Any], counts: RecordedCounts | None, wanted: int
) -> None:
    """Print what an interrupted recording has kept, and the command that continues it."""
    folder = shlex.quote(str(display_path(config.dataset.folder)))
    own = f" --output_dir={shlex.quote(str(config.output_dir))}" if config.output_dir else ""
    kept = "what has ended is kept"
    if counts is not None:
        kept = f"{counts.total} of {wanted} demonstrations are recorded"
        kept += f", {counts.in_dataset} of them are in the dataset"
        if counts.staged:
            waiting = shlex.quote(str(display_path(config.run_folder)))
            kept += f" and {counts.staged} wait in {waiting} (they are added, not run again)"
    again = permission_flags(settings, RECORDING_PLACES, but=("dataset.root", "output_dir"))
    print(
        f"interrupted: {kept}; continue with\n"
        f"  proctor record --resume --dataset.root={folder}{own}{again}",
        file=sys.stderr,
    )


def _show(recorded: RecordingResult, console: Console) -> None:
    """Print the counts of every task, and the folder of the dataset."""
    from rich.table import Table

    from proctor.report.html.tables import fit_table

    table = Table(box=None, pad_edge=False)
    table.add_column("task", overflow="fold")
    for name in ("kept", "attempts", "failed", "errors", "frames"):
        table.add_column(name, justify="right")
    for task in recorded.tasks:
        counts = (task.attempts, task.failed, task.errors)
        of_wanted = f"{task.kept}/{recorded.wanted}"
        table.add_row(
            strip_control_codes(task.name), of_wanted, *map(str, counts), f"{task.frames:,}"
        )
    console.print(fit_table(table, console.width))
    kept = sum(task.kept for task in recorded.tasks)
    frames = sum(task.frames for task in recorded.tasks)
    print(f"\n{kept:,} demonstrations, {frames:,} frames, {recorded.seconds:.1f} s in this session")
    if recorded.note is not None:
        print(strip_control_codes(f"note: {recorded.note}"))
    if not recorded.complete:
        print(_why_incomplete(recorded))
    root = str(display_path(recorded.root))
    if not kept:
        print(f"dataset: {root} (no episodes: no attempt was kept)")
        print(
            "to see what the policy does, record failures too: --record.keep=all with another "
            "--dataset.root"
        )
        return
    print(f"dataset: {root}")
    print(f"look at it: proctor data view {shlex.quote(root)}")


def _why_incomplete(recorded: RecordingResult) -> str:
    short = [task for task in recorded.tasks if task.kept < recorded.wanted]
    errors = sum(task.errors for task in short)
    because = f", {errors} of them broken simulators ({recorded.log})" if errors else ""
    return strip_control_codes(
        f"incomplete: {len(short)} tasks have fewer than {recorded.wanted} after "
        f"{max(task.attempts for task in short)} attempts, as {short[0].name}{because}; "
        "--record.max_attempts=N with --resume allows more"
    )


def resumed_recording(settings: dict[str, Any]) -> EarlierRun | None:
    """Return the recording that ``--resume`` completes."""
    from proctor.config.flags.merging import EarlierRun, is_resumed
    from proctor.runs.folder import RunFolder
    from proctor.runs.paths import settings_with_paths

    if not is_resumed(settings):
        return None
    folder = RunFolder(_run_folder(settings))
    earlier = folder.read()
    if earlier is None:
        raise UsageError(
            f"--resume: {folder.path} holds no recording to resume", code="run.not-found"
        )
    given = settings_with_paths(earlier.given, earlier.paths, folder.path, settings)
    if "seed" in earlier.resolved:  # the default of older versions was another one
        given = {"seed": earlier.resolved["seed"], **given}
    return EarlierRun(given, str(folder.path))


def _run_folder(settings: dict[str, Any]) -> Path:
    """Return the run folder of the recording to resume."""
    from proctor.config.builder import get_setting
    from proctor.config.flags.parsing import path_of
    from proctor.config.recording import RecordDatasetSettings, run_folder_of

    if settings.get("output_dir") is not None:
        return path_of(str(settings["output_dir"]), "--output_dir")
    root = get_setting("dataset", "root", settings)
    repo_id = get_setting("dataset", "repo_id", settings)
    dataset = RecordDatasetSettings(
        repo_id=repo_id or None, root=path_of(root, "--dataset.root") if root else None
    )
    dataset.validate()
    return run_folder_of(dataset)
