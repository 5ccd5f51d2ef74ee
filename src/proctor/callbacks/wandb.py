"""Weights & Biases: success rates during the run; tables, videos and the report page at its end.

A thread sends data to W&B, so a slow network delays no episode and a failure costs one warning.
Everything that is sent is on disk already.
"""

from __future__ import annotations

import importlib.util
import json
import os
import queue
import secrets
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar

from proctor.callbacks.base import Callback
from proctor.errors import MissingExtra, RunFolderError, UsageError
from proctor.runs.folder import WANDB_ID_FILE
from proctor.runs.records import RunProgress
from proctor.runs.training import EvaluationLogRow
from proctor.settings import setting
from proctor.stats.counts import Counts
from proctor.system.platform.environment import key_variable, temporary_environment
from proctor.system.redaction import redact
from proctor.types import EpisodeResult

_LOG_EVERY_S = 1.0
_START_TIMEOUT_S, _FINISH_TIMEOUT_S = 30.0, 60.0
"""Timeouts: for the first answer of W&B, and for the upload after the run."""


class WandbMode(Enum):
    """Where W&B stores the run."""

    ONLINE = "online"
    OFFLINE = "offline"
    DISABLED = "disabled"


@dataclass
class WandbConfig:
    """Whether and how a run is logged to Weights & Biases; never changes an episode."""

    help_group: ClassVar[str] = "Weights & Biases"

    enable: bool = setting(False, "log the run to Weights & Biases")
    project: str = setting("proctor", "W&B project")
    entity: str | None = setting(None, "W&B user or team (default: the user who is logged in)")
    mode: WandbMode | None = setting(
        None,
        "upload the run (online), log it to RUN/wandb only (offline), or log nothing "
        "(disabled) (default: $WANDB_MODE, else online)",
    )
    name: str | None = setting(None, "name of the W&B run (default: the run folder's name)")
    notes: str | None = setting(None, "notes on the W&B run (default: no notes)")

    @property
    def active(self) -> bool:
        """Whether the run is logged."""
        return self.enable and self.mode is not WandbMode.DISABLED


@dataclass(frozen=True)
class WandbResults:
    """Results that are sent to W&B at the end of a run."""

    summary: Mapping[str, Any]
    tasks: Sequence[Mapping[str, Any]]
    """Rows of the table, all with the same columns."""
    videos: Mapping[str, Sequence[Path]]
    """Video files by task."""
    files: Sequence[Path]


def require_wandb(config: WandbConfig) -> None:
    """Check that a run can be logged as ``config`` says; never prompts and never connects."""
    if importlib.util.find_spec("wandb") is None:
        raise MissingExtra("Weights & Biases", "wandb")
    mode = config.mode.value if config.mode else os.environ.get("WANDB_MODE", "online")
    if mode != WandbMode.ONLINE.value:
        return
    import wandb

    if not key_variable("WANDB_API_KEY") and not wandb.login(prompt=False, verify=False):
        raise UsageError(
            "--wandb.enable: no user is logged in to W&B; run: wandb login, or set "
            "WANDB_API_KEY, or add --wandb.mode=offline",
            code="wandb.not-logged-in",
        )


def run_id(folder: Path, chosen: str | None = None) -> str:
    """Return the W&B id of the run in ``folder``: the same for all its sessions.

    A ``chosen`` id is stored in the folder.
    """
    known = read_run_id(folder)
    if known is None or chosen not in (None, known):
        known = chosen or secrets.token_hex(4)
        (folder / WANDB_ID_FILE).write_text(json.dumps({"id": known}) + "\n", encoding="utf-8")
    return known


def read_run_id(folder: Path) -> str | None:
    """Return the W&B id of an earlier session, or None."""
    path = folder / WANDB_ID_FILE
    if not path.exists():
        return None
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["id"])
    except (ValueError, KeyError, TypeError):
        raise RunFolderError(
            f"{path} is damaged; remove it to log this run to W&B as a new one",
            code="run.damaged",
        ) from None


class WandbSession:
    """A thread that sends one run's data to W&B. A failure becomes one warning."""

    axes: ClassVar[Mapping[str, str]]
    """The x axis of metrics, by metric name or pattern."""
    job_type: ClassVar[str | None] = None

    def __init__(
        self,
        config: WandbConfig,
        folder: Path,
        run_config: Mapping[str, Any],
        *,
        tags: Sequence[str] = (),
        chosen_id: str | None = None,
    ) -> None:
        self._config = config
        self._folder = folder.absolute()
        self._run_config = run_config
        self.tags = tags
        self._run_id = run_id(folder, chosen_id)
        self._jobs: queue.SimpleQueue[Callable[[Any], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="proctor-wandb", daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[Any], None]) -> None:
        """Queue ``job``, which is called with W&B's run after all earlier jobs."""
        self._jobs.put(job)

    def end(self, *, failed: bool) -> None:
        """Wait until W&B has everything, for about a minute at most."""
        self._jobs.put(lambda run: run.finish(exit_code=int(failed)))
        self._jobs.put(None)
        self._thread.join(_START_TIMEOUT_S + _FINISH_TIMEOUT_S)
        if self._thread.is_alive():
            _warn("no answer")

    def _work(self) -> None:
        try:
            run = self._begin()
            while (job := self._jobs.get()) is not None:
                job(run)
        except Exception as error:  # noqa: BLE001  an error of W&B must not stop a run
            _warn(" ".join(str(error).split()) or type(error).__name__)

    def _begin(self) -> Any:
        import wandb

        config = self._config
        run = wandb.init(
            project=config.project,
            entity=config.entity,
            mode=config.mode.value if config.mode else None,
            name=config.name or self._folder.name,
            notes=redact(config.notes),
            id=self._run_id,
            resume="allow",
            reinit="create_new",  # leave a W&B run of the caller open
            dir=str(self._folder),
            tags=list(self.tags),
            job_type=self.job_type,
            config=dict(self._run_config),
            settings=wandb.Settings(
                api_key=key_variable("WANDB_API_KEY"),
                console="off",  # Proctor shows a progress line
                x_disable_meta=True,  # metadata includes sys.argv, which may hold keys
                silent=True,
                init_timeout=_START_TIMEOUT_S,
                finish_timeout=_FINISH_TIMEOUT_S,
                finish_timeout_raises=True,
            ),
        )
        for names, axis in self.axes.items():
            run.define_metric(names, step_metric=axis)
        if not run.offline:
            print(f"wandb: {run.url}", file=sys.stderr)
        return run


class WandbCallback(WandbSession, Callback):
    """A callback that logs an evaluation to W&B."""

    axes: ClassVar[Mapping[str, str]] = {"*": "episodes"}

    def __init__(
        self, config: WandbConfig, folder: Path, run_config: Mapping[str, Any], counts: Counts
    ) -> None:
        self._counts = counts
        self._logged_total = counts.total
        self._logged_at = 0.0
        super().__init__(config, folder, run_config)

    def on_episode_end(self, result: EpisodeResult) -> None:
        """Count the episode."""
        self._counts.add(result)

    def on_progress(self, progress: RunProgress) -> None:
        """Log the success rate, at most once a second, if an episode has ended since."""
        now = time.monotonic()
        if self._counts.total != self._logged_total and now - self._logged_at >= _LOG_EVERY_S:
            self._logged_at, self._logged_total = now, self._counts.total
            metrics = success_metrics(self._counts) | speed_metrics(progress)
            self.submit(lambda run: run.log(metrics))

    def close(self) -> None:
        """Log the final success rate; videos follow later."""
        metrics = success_metrics(self._counts)
        self.submit(lambda run: run.log(metrics))

    def finish(self, results: WandbResults, *, failed: bool) -> None:
        """Log the results and wait until W&B has them, for about a minute at most."""
        self.submit(lambda run: self._log_results(run, results))
        self.end(failed=failed)

    def _log_results(self, run: Any, results: WandbResults) -> None:
        import wandb

        with temporary_environment(staging_variables(self._folder / "wandb")):
            columns = list(results.tasks[0]) if results.tasks else []
            table = wandb.Table(columns, [list(task.values()) for task in results.tasks])
            shown: dict[str, Any] = {"tasks": table}
            for task, paths in results.videos.items():
                shown[f"videos/{task}"] = [
                    wandb.Video(str(path), caption=path.stem, format="mp4") for path in paths
                ]
            run.log(shown | success_metrics(self._counts))
        run.summary.update(dict(results.summary))
        for path in results.files:
            shutil.copy(path, run.dir)  # a link would break when the folder is synced elsewhere
            run.save(str(Path(run.dir, path.name)), base_path=run.dir, policy="now", glob=False)


def success_metrics(counts: Counts) -> dict[str, float]:
    """Return the success rate and its interval, if any episode is complete."""
    metrics: dict[str, float] = {
        "episodes": counts.total,
        "diverged": counts.diverged,
        "errors": counts.errors,
        "starts": counts.units.distinct,
    }
    if counts.interval is not None:
        metrics["success/rate"] = counts.successes / counts.completed
        metrics["success/low95"], metrics["success/high95"] = counts.interval
    if counts.suite_interval is not None:
        low, high = counts.suite_interval
        metrics |= {"success/suite_low95": low, "success/suite_high95": high}
    if counts.bounds is not None:
        failed, succeeded = counts.bounds
        metrics |= {
            "success/if_errors_failed": failed,
            "success/if_errors_succeeded": succeeded,
        }
    return metrics


def error_figures(row: EvaluationLogRow) -> dict[str, float]:
    """Return the errors of a checkpoint's evaluation, and the bounds of its rate."""
    if not row.errors or row.bounds is None:
        return {}
    failed, succeeded = row.bounds
    return {
        "eval/n_errors": row.errors,
        "eval/pc_success_if_errors_failed": failed,
        "eval/pc_success_if_errors_succeeded": succeeded,
    }


def speed_metrics(progress: RunProgress) -> dict[str, float]:
    """Return steps per second and the mean batch size."""
    metrics = {"speed/steps_per_s": progress.steps_per_s}
    if progress.mean_batch is not None:
        metrics["speed/mean_batch"] = progress.mean_batch
    return metrics


def staging_variables(folder: Path) -> dict[str, str]:
    """Return variables that make W&B stage tables in the run folder, not in the home folder.

    ``wandb sync`` needs the staged files of an offline run, perhaps on another machine.
    """
    return {"WANDB_DATA_DIR": os.environ.get("WANDB_DATA_DIR", str(folder))}


def _warn(reason: str) -> None:
    print(f"warning: W&B: {reason} (the run itself is not affected)", file=sys.stderr, flush=True)
