"""``proctor rollout``: let a policy drive a robot, and record what a strategy selects."""

from __future__ import annotations

from typing import TYPE_CHECKING

from proctor.commands.robots.robot_output import (
    episodes,
    lost_replies,
    print_dataset,
    push_dataset,
    say,
)
from proctor.commands.shared.arguments import parse_flags
from proctor.errors import exit_code_of, strip_control_codes
from proctor.permissions import RECORDING_PLACES
from proctor.system.files import display_path

if TYPE_CHECKING:
    from proctor.config.rollout import RolloutConfig
    from proctor.control.rollout.session import PreparedRollout, RolloutOutcome

_USAGE = """\
proctor rollout --robot.type=NAME --policy.path=CHECKPOINT [--FLAG=VALUE ...]

Let a policy drive a robot until Ctrl-C, Esc or --duration. --strategy.type chooses what is
recorded: base (nothing), sentry (everything), highlight (what a key selects), episodic (episodes
with resets), dagger (a person's corrections). Backspace is the emergency stop: it switches every
motor off. To measure a success rate, use proctor eval --robot.type=NAME.
"""


def run(words: list[str]) -> int:
    """Run the command and return its exit code."""
    from proctor.config.builder import build
    from proctor.config.flags.merging import merge_settings
    from proctor.config.rollout import RolloutConfig

    given = parse_flags(RolloutConfig, words, _USAGE)
    if given is None:
        return 0
    return _roll_out(build(RolloutConfig, merge_settings(given, places=RECORDING_PLACES)))


def _roll_out(config: RolloutConfig) -> int:
    from proctor.control.recording.session import SessionContext
    from proctor.control.rollout.session import prepare_rollout, run_rollout
    from proctor.control.terminal.keys import TerminalKeys
    from proctor.control.terminal.operator import TerminalOperator
    from proctor.control.terminal.rerun_display import load_rerun
    from proctor.control.terminal.watching import displaying

    if config.display_data:
        load_rerun()  # a missing one is said before the policy is loaded
    prepared = prepare_rollout(config)
    _print_start(prepared)
    keys = TerminalKeys()
    title = f"{prepared.source.name} drives {prepared.robot.name}"
    with displaying(config, prepared.robot, title, config.fps) as display:
        display.page.say(keys=_keys_of(config), planned=_planned(config))

        def announce(line: str) -> None:
            say(line)
            display.page.say(headline=line)

        outcome = run_rollout(
            prepared, SessionContext(keys, TerminalOperator(keys), announce, display)
        )
    _print_outcome(outcome)
    if outcome.failure is not None:
        raise outcome.failure
    if outcome.stopped_by is not None:
        return exit_code_of(KeyboardInterrupt(outcome.stopped_by))
    if outcome.saved is not None:
        push_dataset(outcome.saved, config.dataset)
    return 0


def _print_start(prepared: PreparedRollout) -> None:
    config, source = prepared.config, prepared.source
    for note in (*config.notes, *source.notes):
        say(f"note: {note}")
    inference = f"{source.inference_s * 1000:.0f} ms per inference"
    if source.latency:
        inference += f", requested {source.latency} steps ahead"
    kept = "nothing is recorded"
    if prepared.dataset is not None:
        kept = f"{config.strategy.type.value} -> {display_path(prepared.dataset.root)}"
    say(f"{source.name} drives {prepared.robot.name} at {config.fps} Hz, {inference}; {kept}")
    period = 1 / config.fps
    if not source.latency and source.inference_s > period:
        say(
            f"note: an inference takes longer than the period of {period * 1000:.0f} ms, and the "
            "robot waits for it; --inference.type=async computes while the robot moves"
        )
    say(f"keys: {_keys_of(config)}")


def _planned(config: RolloutConfig) -> int | None:
    """Return how many episodes the strategy records; None: it has no number."""
    from proctor.config.rollout import Strategy

    if config.strategy.type is Strategy.EPISODIC:
        return config.dataset.num_episodes
    if config.strategy.type is Strategy.DAGGER:
        return config.strategy.num_episodes or config.dataset.num_episodes
    return None


def _keys_of(config: RolloutConfig) -> str:
    from proctor.config.rollout import Strategy

    settings, keys = config.strategy, "Esc or q ends, backspace is the emergency stop"
    if settings.type is Strategy.HIGHLIGHT:
        return f"{keys}, {settings.save_key} starts and ends a recording"
    if settings.type is Strategy.EPISODIC:
        return f"{keys}, right or n ends the episode, left or r records it again"
    if settings.type is Strategy.DAGGER:
        return (
            f"{keys}, {settings.pause_key} pauses and resumes, {settings.correction_key} starts "
            "and ends a correction"
        )
    return keys


def _print_outcome(outcome: RolloutOutcome) -> None:
    print(strip_control_codes(str(outcome.jitter)))
    if outcome.held:
        print(f"the robot waited {outcome.held} steps for late replies of the policy")
    for line in lost_replies(outcome.health):
        print(strip_control_codes(line))
    saved = outcome.saved
    if saved is None:
        return
    frames = sum(report.frames for report in outcome.episodes.values())
    print(
        f"{episodes(len(outcome.episodes))}, {frames:,} frames; the dataset has "
        f"{episodes(saved.n_episodes)}"
    )
    if saved.note is not None:
        print(strip_control_codes(f"note: {saved.note}"))
    print_dataset(saved)
