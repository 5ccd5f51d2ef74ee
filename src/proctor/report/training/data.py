"""JSON values of the page of a training: a pure function of its folder's content."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proctor.errors import ProctorError, UsageError
from proctor.fingerprint import flatten
from proctor.report.claims.reproduce import resume_command, train_command
from proctor.report.html.formatting import round_significant, rounded, settings_rows, utc_date
from proctor.report.run.run import Run, load_run
from proctor.report.run.status import status_of
from proctor.runs.folder import RUN_FILE
from proctor.runs.training import (
    CHECKPOINTS,
    EVALUATIONS,
    EvaluationLogRow,
    OnlineLogRow,
    TrainingLogRow,
    TrainingRecord,
    ValidationLogRow,
    read_training,
    read_training_log,
)
from proctor.types import Outcome

_MOST_POINTS = 1000
"""Points of a curve; no screen shows more."""
_MOST_VIDEOS = 24


@dataclass(frozen=True)
class TrainingContent:
    """The content of a training folder."""

    record: TrainingRecord
    training_rows: list[TrainingLogRow]
    validation_rows: list[ValidationLogRow]
    evaluations: list[EvaluationLogRow]
    checkpoints: dict[str, int]
    """Step of each checkpoint by name, including ``best`` and ``last``."""
    evaluation_runs: dict[int, str]
    """Names of the run folders of evaluations, by step."""
    online_rows: list[OnlineLogRow] = field(default_factory=list)

    @property
    def step(self) -> int:
        """The newest step in the log or of a checkpoint; of online learning, environment step."""
        trained = [line.step for line in self.training_rows]
        learned = [line.step for line in self.online_rows]
        return max([0, *self.checkpoints.values(), *trained, *learned])

    @property
    def is_online(self) -> bool:
        """Whether the policy learns online, so that steps are environment steps."""
        return "rl" in self.record.resolved

    @property
    def planned(self) -> int | None:
        """Number of planned steps."""
        settings = flatten(self.record.resolved)
        steps = settings.get("steps")
        if self.is_online:
            typed = settings.get("policy.overrides.online_steps")
            steps = settings.get("policy.online_steps", typed)
        return steps if isinstance(steps, int) else None

    @property
    def best(self) -> EvaluationLogRow | None:
        """The evaluation with the highest score; the newest of equals."""
        rated = [line for line in self.evaluations if line.score is not None]
        return max(rated, key=lambda line: (line.score or 0.0, line.step), default=None)


def read_training_folder(folder: Path) -> TrainingContent:
    """Read a training folder, finished or not."""
    record = read_training(folder)
    if record is None:
        raise UsageError(
            f"{folder} is not the folder of a training (it has no train.json)",
            code="training.not-found",
        )
    lines = read_training_log(folder)
    played = {line.step: line for line in lines if isinstance(line, EvaluationLogRow)}
    runs = {path.name: path for path in _listed(folder / EVALUATIONS) if path.name.isdecimal()}
    return TrainingContent(
        record=record,
        training_rows=[line for line in lines if isinstance(line, TrainingLogRow)],
        validation_rows=[line for line in lines if isinstance(line, ValidationLogRow)],
        evaluations=[played[step] for step in sorted(played)],
        checkpoints=_checkpoints(folder / CHECKPOINTS),
        evaluation_runs={
            int(name): name for name, path in runs.items() if (path / RUN_FILE).is_file()
        },
        online_rows=[line for line in lines if isinstance(line, OnlineLogRow)],
    )


def _listed(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _checkpoints(folder: Path) -> dict[str, int]:
    found = {}
    for path in _listed(folder):
        aimed = str(path.readlink()) if path.is_symlink() else path.name
        if aimed.isdecimal() and path.is_dir():
            found[path.name] = int(aimed)
    return found


def training_title(record: TrainingRecord) -> str:
    """Return the title of a training: policy type and dataset."""
    settings = flatten(record.resolved)
    dataset = settings.get("dataset.repo_id") or settings.get("dataset.root") or "a dataset"
    # A resumed training loads a checkpoint; the flags of its first session have the type.
    kind = record.given.get("policy.type") or settings.get("policy.type") or "a policy"
    if "rl" in record.resolved:
        return f"{kind}, learns online in {settings.get('env.type') or settings.get('robot.type')}"
    return f"{kind}, trained on {dataset}"


def training_data(
    training: TrainingContent, folder: Path, *, running: bool = False
) -> dict[str, Any]:
    """Return the values of the page.

    Args:
        training: the loaded training.
        folder: its folder, from which the evaluations are read.
        running: a process is working on it.
    """
    record = training.record
    videos, warnings = _last_videos(training, folder)
    return {
        "title": training_title(record),
        "status": status_of(training.step, training.planned, running=running).value,
        "left_s": rounded(_seconds_left(training), 1),
        "place": str(folder.absolute()),
        "resume": resume_command(
            folder.absolute(), record.given, record.resolved, _command(training)
        ),
        "started": utc_date(record.sessions[0]) if record.sessions else None,
        "sessions": len(record.sessions),
        "step": training.step,
        "planned": training.planned,
        "warnings": warnings,
        "curves": _curves(training.training_rows),
        "held_out": {
            "step": [line.step for line in training.validation_rows],
            "loss": [round_significant(line.loss) for line in training.validation_rows],
        },
        "best": None if training.best is None else training.best.step,
        "evaluations": [_evaluation(line, training) for line in training.evaluations],
        "films": videos,
        "checkpoints": training.checkpoints,
        "time": _time(training.training_rows),
        "online": _online_charts(training.online_rows) if training.is_online else None,
        "command": train_command(record.given, record.resolved, _command(training)),
        "facts": {
            "Settings": settings_rows(record.resolved),
            "Versions": settings_rows(record.versions),
            "Machine": settings_rows(record.machine),
        },
    }


def _curves(lines: Sequence[TrainingLogRow]) -> dict[str, Any]:
    """Return the log as columns; a long log is averaged over groups of rows."""
    each = max(1, -(-len(lines) // _MOST_POINTS))
    groups = [lines[start : start + each] for start in range(0, len(lines), each)]
    names = sorted(set.intersection(*(set(line.parts) for line in lines))) if lines else []
    return {
        "each": each,
        "step": [group[-1].step for group in groups],
        "lr": [round_significant(group[-1].lr) for group in groups],
        "loss": [_mean([line.loss for line in group]) for group in groups],
        "grad_norm": [_mean([line.grad_norm for line in group]) for group in groups],
        "samples_per_s": [_mean([line.samples_per_s for line in group]) for group in groups],
        "parts": {
            name: [_mean([line.parts[name] for line in group]) for group in groups]
            for name in names
        },
    }


def _command(training: TrainingContent) -> str:
    return "train-online" if training.is_online else "train"


_ONLINE_CHARTS: Mapping[str, Mapping[str, Callable[[OnlineLogRow], float | None]]] = {
    "Episodes of the actors": {
        "success rate": lambda row: row.success,
        "intervention rate": lambda row: row.intervention_rate,
    },
    "Reward of an episode": {"reward": lambda row: row.reward},
    "Replay buffers": {
        "online": lambda row: row.online_buffer,
        "demonstrations and interventions": lambda row: row.offline_buffer,
    },
    "Speed": {
        "updates/s": lambda row: row.updates_per_s,
        "environment steps/s": lambda row: row.steps_per_s,
    },
}
"""Charts against environment steps: the curves of each by name."""


def _online_charts(rows: Sequence[OnlineLogRow]) -> dict[str, Any]:
    """Return the log of online learning as charts; a long log is averaged over groups of rows."""
    each = max(1, -(-len(rows) // _MOST_POINTS))
    groups = [rows[start : start + each] for start in range(0, len(rows), each)]
    names = list(dict.fromkeys(name for row in rows for name in row.losses))
    losses = [name for name in names if name.startswith("loss")]
    charts: dict[str, dict[str, list[float | None]]] = {
        "Losses": {n: [_mean([r.losses.get(n) for r in g]) for g in groups] for n in losses}
    }
    for name in names:
        if name not in losses:
            charts[name] = {name: [_mean([row.losses.get(name) for row in g]) for g in groups]}
    for title, curves in _ONLINE_CHARTS.items():
        charts[title] = {
            name: [_mean([value_of(row) for row in group]) for group in groups]
            for name, value_of in curves.items()
        }
    order = ["Episodes of the actors", "Reward of an episode"]
    titles = [*order, *(title for title in charts if title not in order)]
    return {
        "each": each,
        "step": [group[-1].step for group in groups],
        "updates": rows[-1].updates if rows else 0,
        "charts": [{"title": title, "curves": charts[title]} for title in titles],
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round_significant(sum(known) / len(known)) if known else None


def _evaluation(line: EvaluationLogRow, training: TrainingContent) -> dict[str, Any]:
    rate, ends = line.pc_success, line.interval
    return {
        "step": line.step,
        "rate": None if rate is None else rounded(rate / 100, 6),
        "interval": None if ends is None else [rounded(end / 100, 6) for end in ends],
        "n": line.episodes,
        "problem": line.problem,
        "errors": line.errors_text,
        "run": _run_path(training, line.step),
        "kept": [name for name, step in training.checkpoints.items() if step == line.step],
    }


def _run_path(training: TrainingContent, step: int) -> str | None:
    name = training.evaluation_runs.get(step)
    return None if name is None else f"{EVALUATIONS}/{name}"


def _last_videos(
    training: TrainingContent, folder: Path
) -> tuple[dict[str, Any] | None, list[str]]:
    """Return the videos of the newest evaluation that has any, and warnings."""
    for step, name in sorted(training.evaluation_runs.items(), reverse=True):
        try:
            run = load_run(folder / EVALUATIONS / name)
        except (ProctorError, OSError) as error:
            return None, [f"The evaluation of step {step} cannot be read: {error}"]
        if run.video_keys:
            return {"step": step, "videos": _videos(run, f"{EVALUATIONS}/{name}")}, []
    return None, []


def _videos(run: Run, prefix: str) -> list[dict[str, str]]:
    """Return the first videos, failures first."""
    filmed = [row for row in run.rows if row.key in run.video_keys]
    filmed.sort(key=lambda row: row.outcome is Outcome.SUCCESS)
    return [
        {
            "video": f"{prefix}/{row.video}",
            "outcome": row.outcome.value,
            "name": f"{row.task} episode {row.episode_index}",
        }
        for row in filmed[:_MOST_VIDEOS]
    ]


def _seconds_left(training: TrainingContent) -> float | None:
    """Estimate the remaining seconds from the duration of the newest steps."""
    if training.planned is None:
        return None
    if training.online_rows:
        rate = training.online_rows[-1].steps_per_s
        return max(0, training.planned - training.step) / rate if rate > 0 else None
    if not training.training_rows:
        return None
    return max(0, training.planned - training.step) * training.training_rows[-1].step_s


def _time(lines: Sequence[TrainingLogRow]) -> dict[str, Any]:
    """Return how the time of all steps was spent."""
    total_s = waiting_s = samples = 0.0
    before = 0
    for line in lines:
        elapsed_s = line.step_s * (line.steps or max(0, line.step - before))
        total_s += elapsed_s
        waiting_s += elapsed_s * min(1.0, max(0.0, line.waiting))
        samples += elapsed_s * line.samples_per_s
        before = line.step
    return {
        "total": rounded(total_s, 3),
        "waiting": rounded(waiting_s, 3),
        "samples_per_s": round_significant(samples / total_s) if total_s else None,
        "memory_gb": round_significant(max((line.memory_gb for line in lines), default=None)),
    }
