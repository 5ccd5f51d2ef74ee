"""``proctor.evaluate``: what ``proctor eval`` does, from Python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from proctor.api.arguments import (
    check_names,
    env_settings,
    flat_settings,
    plain,
    policy_settings,
    put,
    warn_caller,
)
from proctor.benchmarks.base import BenchmarkConfig
from proctor.callbacks.base import Callback
from proctor.callbacks.progress import Progress, VideoProgress
from proctor.callbacks.progress_updates import ProgressArgument, ProgressDisplay
from proctor.commands.evaluation.eval_settings import resumed_run
from proctor.config.builder import build
from proctor.config.evaluation import EvalConfig
from proctor.config.flags.merging import merge_settings
from proctor.errors import ProctorNote, ProctorWarning
from proctor.evaluation.notices import Notices, end_notices, start_notices
from proctor.evaluation.preparing import prepare
from proctor.evaluation.run import Evaluation, run_evaluation
from proctor.policies.callable_policy import CallableConfig
from proctor.runs.journal import EpisodeRecord
from proctor.stats.anytime import MonitoredRates
from proctor.system.streams import open_closed_streams

_OWN = ("policy", "env", "task", "n_episodes", "batch_size", "progress")


def evaluate(
    policy: Any = None,
    env: str | Mapping[str, Any] | BenchmarkConfig | None = None,
    *,
    task: str | Iterable[str] | None = None,
    n_episodes: int | None = None,
    batch_size: int | None = None,
    progress: ProgressArgument = None,
    **settings: Any,
) -> Evaluation:
    """Evaluate a policy and return the run, as ``proctor eval`` does.

    Settings are those of the command line, nested as in a config file::

        evaluate("expert", "metaworld", task=["reach-v3", "push-v3"], n_episodes=10, seed=7,
                 eval={"max_retries": 0}, output_dir="outputs/reach")

    An interrupted run is completed by ``evaluate(output_dir="outputs/reach", resume=True)``.

    Warnings and notes of the command line are issued as ``ProctorWarning`` and ``ProctorNote``,
    most of them before the first episode.

    Args:
        policy: a type ("expert"), a checkpoint's folder or Hub id, settings ({"type": ...}), a
            ``Policy``, a function of an observation, or a ``PolicyFunction``.
        env: a benchmark's type, its settings ({"type": ...}), or its config.
        task: tasks or groups of tasks: "a,b" or a list (``--env.task``).
        n_episodes: episodes per task (``--eval.n_episodes``).
        batch_size: simulators that run in parallel (``--eval.batch_size``).
        progress: None shows nothing, True shows a line on the terminal or a bar in a notebook. A
            function receives a ``ProgressUpdate`` a few times a second and at the end; an exception
            of it ends the run, which keeps its finished episodes.
        settings: all other flags of ``proctor eval``.

    Raises:
        ProctorError: in one line, with what to change.
    """
    open_closed_streams()
    check_names("evaluate", EvalConfig, settings, _OWN)
    display = ProgressDisplay(progress)
    given, handed = policy_settings(policy)
    given |= env_settings(env) | plain(settings)
    put(given, "env", "task", task)
    put(given, "eval", "n_episodes", n_episodes)
    put(given, "eval", "batch_size", batch_size)
    merged = merge_settings(flat_settings(EvalConfig, given), resumed=resumed_run)
    config = build(EvalConfig, merged)
    if handed is not None:
        config = with_policy(config, handed)
    prepared = prepare(config)
    warn_of(start_notices(prepared))

    def make_callbacks(before: Sequence[EpisodeRecord], how: MonitoredRates) -> list[Callback]:
        return display.callbacks(lambda to: Progress(prepared.plan, before, to, how))

    def make_video_callbacks(episodes: int) -> list[Callback]:
        return [VideoProgress(episodes, display.console())] if display.on_terminal else []

    evaluation = run_evaluation(prepared, merged, make_callbacks, make_video_callbacks)
    display.send_if_silent(len(evaluation.rows), evaluation.planned, str(evaluation))
    warn_of(end_notices(evaluation, prepared.benchmark.action))
    return evaluation


def with_policy(config: Any, handed: Any) -> Any:
    """Return ``config`` with the policy object that was passed to the function."""
    assert isinstance(config.policy, CallableConfig)
    return replace(config, policy=replace(config.policy, handed=handed))


def warn_of(notices: Notices) -> None:
    """Issue Python warnings to the caller of a function of the API."""
    for warning in notices.warnings:
        warn_caller(warning, ProctorWarning)
    for note in notices.notes:
        warn_caller(note, ProctorNote)
