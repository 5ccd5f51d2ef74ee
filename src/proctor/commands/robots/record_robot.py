"""``proctor record --robot.type=...``: record episodes of a teleoperated robot."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from proctor.commands.robots.robot_output import (
    episodes,
    lost_replies,
    print_dataset,
    push_dataset,
    say,
)
from proctor.errors import exit_code_of, strip_control_codes
from proctor.system.files import display_path

if TYPE_CHECKING:
    from proctor.control.recording.recording import RecordingResult
    from proctor.control.recording.session import PreparedRecording, RecordingOutcome

EXIT_INCOMPLETE = 1
_KEYS = "keys: right or n ends the episode, left or r records it again, Esc or q ends the session"


def record_robot(settings: dict[str, Any]) -> int:
    """Record with a robot, print the results, and return the exit code."""
    from proctor.config.builder import build
    from proctor.config.robot_recording import RobotRecordConfig
    from proctor.control.recording.session import (
        SessionContext,
        prepare_recording,
        run_recording_session,
    )
    from proctor.control.terminal.keys import TerminalKeys
    from proctor.control.terminal.operator import TerminalOperator
    from proctor.control.terminal.watching import displaying

    config = build(RobotRecordConfig, settings)
    prepared = prepare_recording(config)
    _print_start(prepared)
    keys = TerminalKeys()
    title = f"Recording with {prepared.robot.name}"
    with displaying(config, prepared.robot, title, prepared.dataset.fps) as display:
        display.page.say(keys=_KEYS, planned=prepared.plan.n_episodes)

        def announce(line: str) -> None:
            say(line)
            display.page.say(headline=line)

        outcome = run_recording_session(
            prepared, SessionContext(keys, TerminalOperator(keys), announce, display)
        )
    _print_outcome(outcome)
    if outcome.failure is not None:
        raise outcome.failure
    if outcome.stopped_by is not None:
        return exit_code_of(KeyboardInterrupt(outcome.stopped_by))
    push_dataset(outcome.saved, config.dataset)
    return 0 if outcome.result.complete else EXIT_INCOMPLETE


def _print_start(prepared: PreparedRecording) -> None:
    dataset, plan = prepared.dataset, prepared.plan
    for note in prepared.config.notes:
        say(f"note: {note}")
    before = f" ({dataset.n_before} recorded before)" if dataset.n_before else ""
    say(
        f"{prepared.teleop.name} drives {prepared.robot.name} at {dataset.fps} frames per second: "
        f"{plan.n_episodes} episodes{before} -> {display_path(dataset.root)}"
    )
    if not dataset.has_units:
        say("note: the dataset does not state its units; check that the robot has the same ones")
    say(_KEYS)


def _print_outcome(outcome: RecordingOutcome) -> None:
    result, saved = outcome.result, outcome.saved
    takes = f" of {result.takes} takes" if result.failed_takes else ""
    print(
        f"{episodes(len(result.episodes))}{takes}, {result.frames:,} frames; "
        f"the dataset has {episodes(saved.n_episodes)}"
    )
    for line in _observations(result, outcome):
        print(strip_control_codes(line))
    if print_dataset(saved) and not result.complete:
        root = shlex.quote(str(display_path(saved.root)))
        print(f"record more: proctor record --resume=true --dataset.root={root} ...")


def _observations(result: RecordingResult, outcome: RecordingOutcome) -> list[str]:
    """Return what a person should know of the recorded episodes, one line each."""
    lines = []
    reports, saved = result.episodes, outcome.saved
    root = shlex.quote(str(display_path(saved.root)))
    measured = [n for n, report in reports.items() if report.jitter.p99_ms is not None]
    if measured:
        worst = max(measured, key=lambda n: reports[n].jitter.p99_ms or 0)
        lines.append(f"least regular episode {worst}: {reports[worst].jitter}")
    for number, report in result.partial.items():
        lines.append(
            f"episode {number} is partial: {report.frames} frames until the {report.ended_by.value}"
            f"; remove it: proctor data delete {root} --episodes={number} --in_place"
        )
    repeats = sum(sum(report.repeated.values()) for report in reports.values())
    if repeats:
        lines.append(f"{repeats} images repeat the one before (marked in extra.repeated.*)")
    changed = sum(sum(report.changed.values()) for report in reports.values())
    if changed:
        lines.append(f"limits changed {changed} targets; the wishes are in extra.wished_action")
    if saved.waited_s >= 0.001:
        lines.append(f"the loop waited {saved.waited_s:.2f} s for the dataset's writer")
    lines += lost_replies(outcome.health)
    if saved.note is not None:
        lines.append(f"note: {saved.note}")
    return lines
