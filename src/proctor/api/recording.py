"""``proctor.record``: what ``proctor record`` does, from Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from proctor.api.arguments import (
    check_names,
    env_settings,
    flat_settings,
    plain,
    policy_settings,
    put,
)
from proctor.api.evaluation import warn_of, with_policy
from proctor.benchmarks.base import BenchmarkConfig
from proctor.callbacks.base import Callback
from proctor.callbacks.progress import RecordingProgress, RecordingTarget
from proctor.callbacks.progress_updates import ProgressArgument, ProgressDisplay
from proctor.commands.training.record import resumed_recording
from proctor.config.builder import build
from proctor.config.flags.merging import merge_settings
from proctor.config.recording import RecordConfig
from proctor.errors import UsageError
from proctor.evaluation.notices import start_notices
from proctor.evaluation.recording import RecordedCounts, RecordingResult, prepare, run_recording
from proctor.permissions import RECORDING_PLACES
from proctor.system.streams import open_closed_streams

_OWN = ("policy", "env", "dataset", "task", "n_episodes", "batch_size", "progress")


def record(
    policy: Any = None,
    env: str | Mapping[str, Any] | BenchmarkConfig | None = None,
    dataset: str | Path | Mapping[str, Any] | None = None,
    *,
    task: str | Iterable[str] | None = None,
    n_episodes: int | None = None,
    batch_size: int | None = None,
    progress: ProgressArgument = None,
    **settings: Any,
) -> RecordingResult:
    """Record a policy's episodes as a dataset, as ``proctor record`` does.

    Settings are those of the command line, nested as in a config file::

        record("expert", "metaworld", "demos/reach", task="reach-v3", n_episodes=50,
               record={"noise": 0.1})

    An interrupted recording is completed by ``record(dataset="demos/reach", resume=True)``.

    Args:
        policy: as in ``evaluate``.
        env: a benchmark's type, its settings ({"type": ...}), or its config.
        dataset: the dataset's folder (``--dataset.root``), or its settings, such as
            {"repo_id": "user/name"}.
        task: tasks or groups of tasks: "a,b" or a list (``--env.task``).
        n_episodes: demonstrations to keep per task (``--record.n_episodes``).
        batch_size: simulators that run in parallel (``--eval.batch_size``).
        progress: as in ``evaluate``.
        settings: all other flags of ``proctor record``.

    Raises:
        ProctorError: in one line, with what to change.
        KeyboardInterrupt: after everything finished is on disk.
    """
    open_closed_streams()
    check_names("record", RecordConfig, settings, _OWN)
    display = ProgressDisplay(progress)
    given, handed = policy_settings(policy)
    given |= env_settings(env) | _dataset_settings(dataset) | plain(settings)
    put(given, "env", "task", task)
    put(given, "record", "n_episodes", n_episodes)
    put(given, "eval", "batch_size", batch_size)
    flags = flat_settings(RecordConfig, given)
    merged = merge_settings(flags, resumed=resumed_recording, places=RECORDING_PLACES)
    config = build(RecordConfig, merged)
    if handed is not None:
        config = with_policy(config, handed)
    prepared, demonstrations = prepare(config)
    warn_of(start_notices(prepared))
    n_tasks = len(prepared.benchmark.tasks())

    def make_callbacks(before: RecordedCounts, in_dataset: Callable[[], int]) -> list[Callback]:
        target = RecordingTarget(n_tasks, before.wanted, before.finished, config.record.kept)
        return display.callbacks(lambda to: RecordingProgress(target, in_dataset, to))

    recorded = run_recording(prepared, demonstrations, merged, make_callbacks)
    done = sum(task.kept for task in recorded.tasks)
    display.send_if_silent(done, recorded.wanted * n_tasks, str(recorded))
    return recorded


def _dataset_settings(dataset: str | Path | Mapping[str, Any] | None) -> dict[str, Any]:
    if dataset is None:
        return {}
    if isinstance(dataset, Mapping):
        return {"dataset": plain(dataset)}
    if isinstance(dataset, str | Path):
        return {"dataset": {"root": str(dataset)}}
    raise UsageError(
        f"dataset={dataset!r:.60}: expected a folder, or settings such as "
        '{"repo_id": "user/name"}',
        code="flag.invalid-value",
    )
