"""One evaluation, from config to results: checks everything, then runs the missing episodes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from proctor.callbacks.base import Callback
from proctor.callbacks.staged_episodes import RecordingOptions
from proctor.callbacks.wandb import read_run_id, require_wandb
from proctor.config.evaluation import EvalConfig
from proctor.errors import RunFolderError
from proctor.evaluation.cluster.run import make_executor
from proctor.evaluation.demonstrations import Demonstrations
from proctor.evaluation.plan import check_planned, remaining_episodes
from proctor.evaluation.preparing import make_run_record
from proctor.evaluation.rollout_context import RolloutContext, require_judged
from proctor.evaluation.rollouts import check_rollout_recording, recording_rollouts
from proctor.evaluation.session import MakeVideoCallbacks, Session
from proctor.evaluation.starts.trained_starts import write_trained_starts
from proctor.evaluation.stop_rules import make_early_stopping
from proctor.evaluation.tracking import wandb_tracking
from proctor.evaluation.video_replay import ReplayedVideos, VideoReplay
from proctor.report.robustness.drops import make_robustness
from proctor.report.robustness.sensitivity import make_sensitivity
from proctor.report.robustness.table import robustness_json
from proctor.report.run.contamination import contamination_of
from proctor.report.run.history import history_of
from proctor.report.run.judge_agreement import judge_agreement
from proctor.report.run.results import Results
from proctor.report.run.stopped import end_reason
from proctor.report.run.summary import eval_info
from proctor.report.run.warnings import run_warnings
from proctor.runs.disk_errors import (
    explaining_disk_errors,
    ignoring_later_disk_errors,
    kept_episodes_text,
)
from proctor.runs.folder import EVAL_INFO_FILE, RunFolder, RunRecord, write_json
from proctor.runs.journal import (
    JOURNAL_FILE,
    EpisodeRecord,
    read_journal,
    videos_in,
    with_clean_tasks,
)
from proctor.runs.jsonl import truncate_partial_line
from proctor.runs.latency import latency_summary
from proctor.runs.sessions import read_session_totals
from proctor.runs.videos import read_video_warnings, remove_unfinished
from proctor.stats.anytime import MonitoredRates
from proctor.stats.stopping import EpisodeOutcome
from proctor.types import EpisodeSpec

MakeCallbacks = Callable[[Sequence[EpisodeRecord], MonitoredRates], list[Callback]]
"""Makes the callbacks of a session besides the journal, given the episodes already finished and the
rates that need anytime-valid intervals."""


@dataclass(frozen=True, repr=False)
class Evaluation(Results):
    """A run after an evaluation session."""

    filmed: ReplayedVideos = field(default_factory=ReplayedVideos)
    rollouts: Path | None = None
    """The dataset of its recorded episodes."""


def run_evaluation(
    context: RolloutContext[EvalConfig],
    given: dict[str, Any],
    make_callbacks: MakeCallbacks | None = None,
    make_video_callbacks: MakeVideoCallbacks = lambda episodes: [],
) -> Evaluation:
    """Run the episodes of ``context`` that its folder does not hold yet, then record videos.

    Raises:
        UsageError: the folder holds another run, the run of --against cannot be compared, or videos
            or W&B were requested and are not available here.
        RunFolderError: the folder is in use or cannot be written.
        KeyboardInterrupt: passed on, after everything finished is on disk.
    """
    config, folder, plan = context.config, context.folder, context.plan
    protocol = context.protocol()
    early_stopping = make_early_stopping(config, plan, protocol)
    _check_outputs(config, _video_replay(context))
    demonstrations = check_rollout_recording(config, context.benchmark, folder.path)
    kept_of = partial(kept_episodes_text, folder.path, len(plan))
    with folder.locked(), _live_page(config, folder), explaining_disk_errors(kept_of):
        record = folder.session_record(
            make_run_record(context, protocol, given), resume=config.resume
        )
        done = with_clean_tasks(read_journal(folder.path).rows, record.tasks or ())
        _check_records(config, folder.path)
        check_planned(plan, done, folder.path)
        folder.begin(record)  # nothing is refused from here on
        write_trained_starts(folder.path, context.trained)
        truncate_partial_line(folder.path / JOURNAL_FILE)
        remove_unfinished(folder.path)
        how = history_of(record).monitored
        before = [row for row in done if row.outcome.counts]
        for row in before:
            early_stopping.add(EpisodeOutcome(row.key, row.started, row.outcome))
        rest = remaining_episodes(plan, done, decided=early_stopping.decided)
        with (
            recording_rollouts(demonstrations, plan, done, folder.path, protocol) as kept,
            wandb_tracking(config.wandb, folder.path, record, before) as trackers,
            _session(context, demonstrations, kept.recording) as session,
        ):
            try:
                if rest.specs:
                    outputs = [] if make_callbacks is None else make_callbacks(before, how)
                    session.run(rest, [*kept.callbacks, *outputs, *trackers], early_stopping)
            finally:
                rows = _write_results(folder.path, len(plan), record, early_stopping.decision)
            kept.finish()
            with _naming_videos(folder.path, len(plan), record, early_stopping.decision):
                filmed = session.record_videos(rows, make_video_callbacks)
    return Evaluation(
        path=folder.path,
        planned=len(plan),
        rows=_in_order(rows, plan),
        stopped=early_stopping.decision,
        history=history_of(record),
        scores=tuple(record.scores),
        warnings=tuple(record.warnings),
        tasks=tuple(record.tasks or ()),
        filmed=filmed,
        rollouts=config.record,
    )


def _in_order(rows: Sequence[EpisodeRecord], plan: Sequence[EpisodeSpec]) -> list[EpisodeRecord]:
    """Return the episodes in the plan's order."""
    places = {spec.key: place for place, spec in enumerate(plan)}
    return sorted(rows, key=lambda row: places[row.key])


def _check_records(config: EvalConfig, folder: Path) -> None:
    """Read what the end of the run needs, so that a damaged file is refused now."""
    read_session_totals(folder)
    read_video_warnings(folder)
    if config.wandb.active:
        read_run_id(folder)


def _session(
    context: RolloutContext[EvalConfig],
    demonstrations: Demonstrations | None,
    recording: RecordingOptions | None,
) -> Session:
    """Return the session; its workers can render every camera that is recorded."""
    settings = context.settings()
    if demonstrations is not None:
        environment = demonstrations.environment(context.policy.spec.inputs)
        settings = replace(settings, environment=environment)
    executor = make_executor(
        context.config, settings, context.policy, context.folder.path, context.protocol
    )
    return Session(settings, executor, _video_replay(context), recording, context.judge)


def _video_replay(context: RolloutContext[EvalConfig]) -> VideoReplay:
    return VideoReplay(
        settings=context.config.video,
        benchmark=context.benchmark,
        policy=context.policy,
        plan=context.plan,
        folder=context.folder.path,
    )


def _check_outputs(config: EvalConfig, video_replay: VideoReplay) -> None:
    """Refuse requested outputs that are not available here, before anything starts."""
    if config.may_stop:
        require_judged(video_replay.benchmark, "--against and --eval.stop_when watch a rate")
    if config.video.asked and config.video.per_task:
        video_replay.environment()
    if config.wandb.active:
        require_wandb(config.wandb)


def _write_results(
    folder: Path, planned: int, record: RunRecord, decision: str | None
) -> list[EpisodeRecord]:
    """Write the summary and the page, also after an interrupted session; return the rows."""
    rows: list[EpisodeRecord] = []
    with ignoring_later_disk_errors():
        rows = _write_info(folder, planned, record, decision)
        if not isinstance(sys.exception(), RunFolderError):  # a full disk has no room for the page
            from proctor.report.run.page import write_page  # late: the first action does not wait

            write_page(folder)
    return rows


@contextmanager
def _naming_videos(
    folder: Path, planned: int, record: RunRecord, decision: str | None
) -> Iterator[None]:
    """Write ``eval_info.json`` again after the videos, even if recording them failed."""
    try:
        yield
    finally:
        with ignoring_later_disk_errors():
            _write_info(folder, planned, record, decision)


def _write_info(
    folder: Path, planned: int, record: RunRecord, decision: str | None
) -> list[EpisodeRecord]:
    """Write ``eval_info.json`` and return the rows."""
    rows = with_clean_tasks(read_journal(folder).rows, record.tasks or ())
    history = history_of(record)
    how = history.monitored
    info = eval_info(rows, planned, record.sessions, decision, how, videos_in(folder))
    effort = read_session_totals(folder)
    info["proctor"] |= {"infer_s": effort.infer_s, "mean_batch": effort.mean_batch}
    info["proctor"]["policy_latency"] = latency_summary(effort.calls)
    info["proctor"]["warnings"] = run_warnings(rows, record)
    info["proctor"]["history"] = history.to_json()
    contamination = contamination_of(folder, rows, how.overall)
    info["proctor"]["contamination"] = None if contamination is None else contamination.to_json()
    info["proctor"]["robustness"] = _robustness(rows, record)
    agreement = judge_agreement(rows)
    info["proctor"]["judge"] = None if agreement is None else agreement.to_json()
    info["proctor"] |= {"session": len(record.sessions), "ended": end_reason(sys.exception())}
    write_json(folder / EVAL_INFO_FILE, info)
    return rows


def _robustness(rows: Sequence[EpisodeRecord], record: RunRecord) -> dict[str, Any] | None:
    found = make_robustness(record.tasks or (), rows)
    return None if found is None else robustness_json(found, make_sensitivity(found))


@contextmanager
def _live_page(config: EvalConfig, folder: RunFolder) -> Iterator[None]:
    """Serve the run's page during the block, if --live is set."""
    if not config.live:
        yield
        return
    from proctor.evaluation.live import live_page

    with live_page(folder.path, config.live_host, config.live_port) as address:
        print(f"live: {address}", file=sys.stderr, flush=True)
        yield
