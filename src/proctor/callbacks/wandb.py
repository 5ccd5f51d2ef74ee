"""Weights & Biases: the rate as the run goes on; at its end tables, videos and the report page.

A thread of its own talks to W&B, so that a slow network holds up no episode and a broken one costs
a warning. Everything it is told is on disk already.
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
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar

from proctor.callbacks.base import Callback
from proctor.errors import MissingExtra, RunFolderError, UsageError
from proctor.runs.records import RunProgress
from proctor.stats.counts import Counts
from proctor.system.environment import temporary_environment
from proctor.types import EpisodeResult

_ID_FILE = "wandb.json"
_LOG_EVERY_S = 1.0
_BEGIN_S, _FINISH_S = 30.0, 60.0
"""How long W&B may take to answer at all, and to upload the rest once the run is over."""


class WandbMode(Enum):
    """Where W&B keeps what it is told."""

    ONLINE = "online"
    OFFLINE = "offline"
    DISABLED = "disabled"


@dataclass
class WandbConfig:
    """Whether and where a run is logged to Weights & Biases. None of it changes an episode."""

    enable: bool = field(default=False, metadata={"help": "log the run to Weights & Biases"})
    project: str = field(default="proctor", metadata={"help": "the W&B project"})
    entity: str | None = field(
        default=None, metadata={"help": "the W&B user or team (default: the one logged in)"}
    )
    mode: WandbMode | None = field(
        default=None,
        metadata={"help": "offline: only to RUN/wandb; default: WANDB_MODE, else online"},
    )
    name: str | None = field(
        default=None, metadata={"help": "what W&B calls the run (default: its folder's name)"}
    )
    notes: str | None = field(default=None, metadata={"help": "a text to show beside it"})

    @property
    def active(self) -> bool:
        """Whether anything is to be logged."""
        return self.enable and self.mode is not WandbMode.DISABLED


@dataclass(frozen=True)
class WandbResults:
    """What W&B is told once the run is over."""

    summary: Mapping[str, Any]
    tasks: Sequence[Mapping[str, Any]]
    """The rows of the table, all with the same columns."""
    videos: Mapping[str, Sequence[Path]]
    """By task."""
    files: Sequence[Path]


def require_wandb(config: WandbConfig) -> None:
    """Check that a run can be logged as ``config`` says; asks nobody and connects to nothing.

    Raises:
        MissingExtra: W&B is not installed.
        UsageError: it would have to be online and nobody is logged in.
    """
    if importlib.util.find_spec("wandb") is None:
        raise MissingExtra("Weights & Biases", "wandb")
    mode = config.mode.value if config.mode else os.environ.get("WANDB_MODE", "online")
    if mode != WandbMode.ONLINE.value:
        return
    import wandb

    if not wandb.login(prompt=False, verify=False):
        raise UsageError(
            "--wandb.enable: nobody is logged in to W&B here; run: wandb login, or set "
            "WANDB_API_KEY, or add --wandb.mode=offline"
        )


def run_id(folder: Path, chosen: str | None = None) -> str:
    """Return the id under which W&B knows the run in ``folder``: the same for all its sessions.

    A ``chosen`` one becomes the folder's.

    Raises:
        RunFolderError: ``wandb.json`` is damaged.
    """
    known = read_run_id(folder)
    if known is None or chosen not in (None, known):
        known = chosen or secrets.token_hex(4)
        (folder / _ID_FILE).write_text(json.dumps({"id": known}) + "\n", encoding="utf-8")
    return known


def read_run_id(folder: Path) -> str | None:
    """Return the id that an earlier session gave the run; None where there was none.

    Raises:
        RunFolderError: ``wandb.json`` is damaged.
    """
    path = folder / _ID_FILE
    if not path.exists():
        return None
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["id"])
    except (ValueError, KeyError, TypeError):
        raise RunFolderError(
            f"{path} is damaged; remove it to log this run to W&B as a new one"
        ) from None


class WandbSession:
    """A thread that talks to W&B of one run. Whatever fails there is one warning."""

    axes: ClassVar[Mapping[str, str]]
    """What is drawn against what, by name or pattern."""
    job_type: ClassVar[str | None] = None

    def __init__(
        self,
        config: WandbConfig,
        folder: Path,
        about: Mapping[str, Any],
        *,
        tags: Sequence[str] = (),
        chosen_id: str | None = None,
    ) -> None:
        self._config = config
        self._folder = folder.absolute()
        self._about = about
        self.tags = tags
        self._run_id = run_id(folder, chosen_id)
        self._jobs: queue.SimpleQueue[Callable[[Any], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="proctor-wandb", daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[Any], None]) -> None:
        """Have something done with W&B's run, after all that was asked for before."""
        self._jobs.put(job)

    def end(self, *, failed: bool) -> None:
        """Wait until W&B has all that it was told, for a minute or so at most."""
        self._jobs.put(lambda run: run.finish(exit_code=int(failed)))
        self._jobs.put(None)
        self._thread.join(_BEGIN_S + _FINISH_S)
        if self._thread.is_alive():
            _warn("it does not answer")

    def _work(self) -> None:
        try:
            run = self._begin()
            while (job := self._jobs.get()) is not None:
                job(run)
        except Exception as error:  # noqa: BLE001  W&B is not ours; no fault of it may reach a run
            _warn(" ".join(str(error).split()) or type(error).__name__)

    def _begin(self) -> Any:
        import wandb

        config = self._config
        run = wandb.init(
            project=config.project,
            entity=config.entity,
            mode=config.mode.value if config.mode else None,
            name=config.name or self._folder.name,
            notes=config.notes,
            id=self._run_id,
            resume="allow",
            reinit="create_new",  # a run that the caller has open stays as it is
            dir=str(self._folder),
            tags=list(self.tags),
            job_type=self.job_type,
            config=dict(self._about),
            settings=wandb.Settings(
                console="off",  # ours shows a live line
                x_disable_meta=True,  # it holds sys.argv, which may hold keys
                silent=True,
                init_timeout=_BEGIN_S,
                finish_timeout=_FINISH_S,
                finish_timeout_raises=True,
            ),
        )
        for names, axis in self.axes.items():
            run.define_metric(names, step_metric=axis)
        if not run.offline:
            print(f"wandb: {run.url}", file=sys.stderr)
        return run


class WandbCallback(WandbSession, Callback):
    """A recorder that tells W&B how an evaluation goes."""

    axes: ClassVar[Mapping[str, str]] = {"*": "episodes"}

    def __init__(
        self, config: WandbConfig, folder: Path, about: Mapping[str, Any], counts: Counts
    ) -> None:
        self._counts = counts
        self._said = counts.total
        self._logged_at = 0.0
        super().__init__(config, folder, about)

    def on_episode_end(self, result: EpisodeResult) -> None:
        """Count the episode."""
        self._counts.add(result.outcome, result.spec.world_key)

    def on_progress(self, progress: RunProgress) -> None:
        """Log the rate, at most once a second, if an episode has ended since."""
        now = time.monotonic()
        if self._counts.total != self._said and now - self._logged_at >= _LOG_EVERY_S:
            self._logged_at, self._said = now, self._counts.total
            figures = success_metrics(self._counts) | speed_metrics(progress)
            self.submit(lambda run: run.log(figures))

    def close(self) -> None:
        """Log where the episodes ended; the videos are still to come."""
        figures = success_metrics(self._counts)
        self.submit(lambda run: run.log(figures))

    def finish(self, results: WandbResults, *, failed: bool) -> None:
        """Log the results and wait until W&B has them, for a minute or so at most."""
        self.submit(lambda run: self._show(run, results))
        self.end(failed=failed)

    def _show(self, run: Any, results: WandbResults) -> None:
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
            shutil.copy(path, run.dir)  # a link would dangle once the folder is synced elsewhere
            run.save(str(Path(run.dir, path.name)), base_path=run.dir, policy="now", glob=False)


def success_metrics(counts: Counts) -> dict[str, float]:
    """Return the rate and its interval; without a completed episode there is none."""
    figures: dict[str, float] = {
        "episodes": counts.total,
        "diverged": counts.diverged,
        "errors": counts.errors,
        "worlds": counts.worlds.distinct,
    }
    if counts.interval is not None:
        figures["success/rate"] = counts.successes / counts.completed
        figures["success/low95"], figures["success/high95"] = counts.interval
    return figures


def speed_metrics(progress: RunProgress) -> dict[str, float]:
    """Return how fast the run goes."""
    figures = {"speed/steps_per_s": progress.steps_per_s}
    if progress.mean_batch is not None:
        figures["speed/mean_batch"] = progress.mean_batch
    return figures


def staging_variables(folder: Path) -> dict[str, str]:
    """Let W&B stage tables beside the rest of the run, and not in the home folder.

    What an offline run staged is needed by ``wandb sync``, maybe on another machine.
    """
    return {"WANDB_DATA_DIR": os.environ.get("WANDB_DATA_DIR", str(folder))}


def _warn(reason: str) -> None:
    print(f"warning: W&B: {reason} (the run itself is not affected)", file=sys.stderr, flush=True)
