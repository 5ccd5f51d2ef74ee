"""JSON values of the report page: a pure function of a run folder's content."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from proctor.report.claims.reproduce import (
    episode_command_prefix,
    episode_flag,
    resume_command,
    run_command,
    task_flags,
)
from proctor.report.html.formatting import rounded, settings_rows, utc_date
from proctor.report.robustness.data import robustness_data
from proctor.report.run.failure_data import failure_data
from proctor.report.run.judge_agreement import judge_agreement
from proctor.report.run.run import Run
from proctor.report.run.status import seconds_left, status_of
from proctor.report.run.summary import Tally, by_group, by_task, clean_rows, pass_rates, tally
from proctor.report.run.timeline import Timeline, make_timeline, throughput_limit, time_spent
from proctor.report.run.warnings import run_warnings
from proctor.runs.folder import RunRecord
from proctor.runs.journal import EpisodeRecord
from proctor.runs.latency import latency_summary
from proctor.runs.records import RunProgress
from proctor.stats.anytime import AnytimeInterval
from proctor.stats.independent_units import unit_numbers
from proctor.stats.rates import Interval
from proctor.types import Outcome

_LONGEST_ERROR = 1500
"""Characters of an error on the page, so that a thousand errors stay under 2 MB."""
_DISPLAY_ORDER = {
    Outcome.FAILURE: 0,
    Outcome.DIVERGED: 1,
    Outcome.ERROR: 2,
    Outcome.SUCCESS: 3,
    Outcome.ENDED: 4,
}
"""Order of episodes on the page: failures first."""


def page_data(run: Run, *, running: bool = False) -> dict[str, Any]:
    """Return the values of the page; ``running``: a process is working on the run."""
    record, done, planned = run.record, run.n_done, run.record.planned_episodes
    timeline = make_timeline(run.rows, record.sessions)
    tasks, groups, how = _tasks(run), by_group(run.rows), run.monitored
    overall = tally(clean_rows(run.rows), how.overall)
    status = status_of(done, planned, running=running, stopped=run.stopped is not None)
    return {
        "title": title(record),
        "status": status.value,
        "left_s": rounded(seconds_left(run.rows, _expected_episodes(run), record.sessions), 1),
        "begun": bool(run.rows),
        "checkpoint": _policy_path(record),
        "place": str(run.path.absolute()),
        "resume": resume_command(run.path.absolute(), record.given, record.resolved),
        "started": utc_date(record.sessions[0]) if record.sessions else None,
        "sessions": len(record.sessions),
        "planned": planned,
        "recorded": done,
        "unit": run.unit,
        "damaged": run.damaged,
        "stopped": run.stopped,
        "interrupted": run.interrupted,
        "interval": overall.interval_kind,
        "history": run.history.text,
        "warnings": run_warnings(run.rows, record),
        "scores": [asdict(score) for score in record.scores],
        "overall": _tallied(overall) | _bounds(overall),
        "headline": run.headline,
        "repeats": _repeats(run.rows),
        "judge": _judge(run.rows),
        "contamination": None if run.contamination is None else run.contamination.to_json(),
        "groups": [
            {"name": suite, **_tally(rows, how.group)}
            for suite, rows in groups.items()
            if 1 < len(groups) < len(tasks)
        ],
        "tasks": [_task(task, how.task) for task in tasks],
        "episodes": _episodes(run, timeline, [task.key for task in tasks]),
        "robustness": robustness_data(run),
        "failures": failure_data(run, [task.key for task in tasks]),
        "errors": _errors(run.rows),
        "film_warnings": run.video_warnings,
        "time": _time(run.rows, timeline, run.session_totals),
        "fingerprint": record.fingerprint,
        "command": run_command(record.pinned_given, record.resolved),
        "episode_command": [
            episode_command_prefix(record.pinned_given, record.resolved),
            episode_flag(0).removesuffix("0"),
        ],
        "facts": {
            "Protocol": settings_rows(record.protocol),
            "Settings": settings_rows(record.resolved),
            "Versions": settings_rows(record.versions),
            "Machine": settings_rows(record.machine),
        },
    }


def _repeats(rows: Sequence[EpisodeRecord]) -> list[dict[str, Any]]:
    """Return pass@k and its interval, for each k of the run's repeated episodes."""
    return [
        {
            "k": one.k,
            "rate": rounded(one.rate, 6),
            "interval": [rounded(end, 6) for end in one.interval],
            "starts": one.starts,
        }
        for one in pass_rates(rows)
    ]


def _expected_episodes(run: Run) -> int | None:
    """Return how many episodes the run will have; a recording runs more than it keeps."""
    planned = run.record.planned_episodes
    if not run.record.is_recording or planned is None:
        return planned
    attempts = len(run.rows)
    return attempts + round((planned - run.n_done) * attempts / run.n_done) if run.n_done else None


def title(record: RunRecord) -> str:
    """Return the title of a run: policy and benchmark."""
    return f"{_type(record, 'policy')} on {_type(record, 'benchmark')}"


def _type(record: RunRecord, part: str) -> str:
    section = record.protocol.get(part)
    return str(section.get("type", f"a {part}") if isinstance(section, Mapping) else f"a {part}")


def _policy_path(record: RunRecord) -> str | None:
    policy = record.resolved.get("policy")
    path = policy.get("path") if isinstance(policy, Mapping) else None
    return path if isinstance(path, str) else None


@dataclass(frozen=True)
class _Task:
    """A task of the run, and its finished episodes."""

    key: tuple[str, int]
    name: str
    instruction: str | None
    planned: int | None
    rows: Sequence[EpisodeRecord]


def _tasks(run: Run) -> list[_Task]:
    """Return all tasks; older folders list only tasks with finished episodes."""
    finished = by_task(run.rows)
    tasks = [
        _Task(key, task.name, task.instruction, task.episodes, finished.pop(key, ()))
        for task in run.record.tasks or ()
        for key in [(task.suite, task.task_id)]
    ]
    return tasks + [_Task(key, rows[0].task, None, None, rows) for key, rows in finished.items()]


def _task(task: _Task, anytime: AnytimeInterval | None) -> dict[str, Any]:
    return {
        "name": task.name,
        "group": task.key[0],
        "id": task.key[1],
        "instruction": task.instruction,
        "planned": task.planned,
        "flags": task_flags(*task.key),
        **_tally(task.rows, anytime),
    }


def _tally(rows: Sequence[EpisodeRecord], anytime: AnytimeInterval | None) -> dict[str, Any]:
    return _tallied(tally(rows, anytime))


def _tallied(added: Tally) -> dict[str, Any]:
    return {
        "k": added.successes if added.judged else None,
        "n": added.episodes,
        "diverged": added.diverged,
        "starts": added.units.distinct,
        "worth": rounded(added.units.effective_n, 3),
        "errors": added.errors,
        "rate": rounded(added.rate, 6),
        "interval": _ends(added.interval),
        "suite_interval": _ends(added.suite_interval),
        "at_end": rounded(added.rate_at_end, 6) if added.differs_at_end else None,
        "at_end_interval": _ends(added.interval_at_end),
        "steps": rounded(added.mean_steps_to_success, 1),
        "length": rounded(added.mean_steps, 1),
        "scores": {name: rounded(value, 4) for name, value in added.scores.items()},
        "reward": rounded(added.avg_sum_reward, 3),
    }


def _ends(interval: Interval | None) -> list[float | None] | None:
    return None if interval is None else [rounded(end, 6) for end in interval]


def _judge(rows: Sequence[EpisodeRecord]) -> dict[str, Any] | None:
    """Return the judge's rate and its agreement with the simulator; None without a judge."""
    found = judge_agreement(rows)
    if found is None:
        return None
    return {
        "k": found.successes,
        "n": found.judged,
        "agreement": rounded(found.rate, 6),
        "interval": _ends(found.interval),
        "compared": found.compared,
        "false": found.false_successes,
        "missed": found.missed_successes,
    }


def _bounds(added: Tally) -> dict[str, Any]:
    """Return the bounds of the rate: all errored episodes failed, or all succeeded."""
    bounds = added.bounds
    return {"bounds": None if bounds is None else [rounded(end, 6) for end in bounds]}


def _episodes(run: Run, timeline: Timeline, tasks: list[tuple[str, int]]) -> dict[str, list[Any]]:
    """Return the episodes as columns, which is far smaller than one object per episode."""
    task_index = {task: position for position, task in enumerate(tasks)}
    texts = {text: position for position, text in enumerate(_errors(run.rows))}
    columns: dict[str, Callable[[EpisodeRecord], Any]] = {
        "task": lambda row: task_index[row.suite, row.task_id],
        "index": lambda row: row.episode_index,
        "seed": lambda row: row.seed,
        "init_state": lambda row: row.init_state,
        "outcome": lambda row: _DISPLAY_ORDER[row.outcome],
        "at_end": lambda row: row.success_at_end,
        "steps": lambda row: row.steps,
        "reward": lambda row: rounded(row.sum_reward, 3),
        "best": lambda row: rounded(row.max_reward, 3),
        "worker": lambda row: row.worker,
        "attempts": lambda row: row.attempts,
        "renders": lambda row: row.renders,
        "clipped": lambda row: row.clipped_steps,
        "open": lambda row: rounded(row.open_s, 4),
        "simulate": lambda row: rounded(row.sim_s, 4),
        "render": lambda row: rounded(row.render_s, 4),
        "wait": lambda row: rounded(row.wait_s, 4),
        "digest": lambda row: row.digest,
        "error": lambda row: None if row.error is None else texts[_shortened(row.error)],
        "video": lambda row: row.video if row.key in run.video_keys else None,
        "labels": lambda row: run.labels.get(row.key),
    }
    episodes = {name: [value(row) for row in run.rows] for name, value in columns.items()}
    episodes["unit"] = unit_numbers(run.rows)
    episodes["start"] = [rounded(span.start_s, 3) for span in timeline.spans]
    episodes["duration"] = [
        None if row.sim_s is None else rounded(span.duration_s, 4)
        for row, span in zip(run.rows, timeline.spans, strict=True)
    ]
    return episodes


def _errors(rows: Sequence[EpisodeRecord]) -> list[str]:
    """Return the distinct error texts."""
    return list(dict.fromkeys(_shortened(row.error) for row in rows if row.error is not None))


def _shortened(error: str) -> str:
    """Cut a long error; its end is kept, where a traceback has the exception."""
    cut = len(error) - _LONGEST_ERROR
    if cut <= 0:
        return error
    return f"[{cut} characters are left out here; episodes.jsonl has them]\n{error[cut:]}"


def _time(rows: Sequence[EpisodeRecord], timeline: Timeline, effort: RunProgress) -> dict[str, Any]:
    spent = time_spent(rows, timeline)
    limit = throughput_limit(spent, timeline, effort.infer_s)
    return {
        "total": rounded(timeline.total_s, 3),
        "workers": sorted({row.worker for row in rows}),
        "breaks": [rounded(end, 3) for end in timeline.breaks],
        "spent": {name: rounded(seconds, 3) for name, seconds in spent.items()},
        "infer": rounded(effort.infer_s, 3),
        "mean_batch": rounded(effort.mean_batch, 2),
        "latency": latency_summary(effort.calls),
        "limit": limit
        and {
            "fraction": rounded(limit.fraction, 4),
            "workers": rounded(limit.workers, 4),
            "policy": rounded(limit.policy, 4),
        },
    }
