"""``proctor eval --record``: records all episodes of an evaluation into a dataset."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from proctor.benchmarks.base import Benchmark
from proctor.callbacks.dataset import AppendOrder, DatasetCallback, OpenDataset
from proctor.callbacks.staged_episodes import EpisodeFilter
from proctor.config.evaluation import EvalConfig
from proctor.config.recording import RecordDatasetSettings, RecordSettings
from proctor.errors import UsageError
from proctor.evaluation.demonstrations import Demonstrations, check_recording, pending_episodes
from proctor.features import REWARD, SUCCESS
from proctor.runs.folder import RunFolder
from proctor.runs.journal import EpisodeRecord
from proctor.types import EpisodeSpec


def check_rollout_recording(
    config: EvalConfig, benchmark: Benchmark, folder: Path
) -> Demonstrations | None:
    """Check that the run in ``folder`` can be recorded as asked; None if --record is not set."""
    if config.record is None:
        return None
    if config.record.exists() and not config.resume and not _is_unbegun(config.record, folder):
        raise UsageError(
            f"--record: {config.record} exists; choose another folder", code="dataset.exists"
        )
    extra = [REWARD, SUCCESS] if benchmark.judged else [REWARD]
    settings = RecordSettings(keep=EpisodeFilter.ALL, images=config.record_images, extra=extra)
    dataset = RecordDatasetSettings(root=config.record)
    dataset.validate()
    return check_recording(benchmark, dataset, settings, folder)


def _is_unbegun(root: Path, folder: Path) -> bool:
    """Whether the dataset and the run are those of a start that ended before an episode did."""
    run = RunFolder(folder)
    if run.read() is None or run.has_episodes:
        return False
    from proctor.datasets.format.info_file import read_info
    from proctor.datasets.writing.staging import has_content  # imports pyarrow

    return not has_content(root) or read_info(root).total_episodes == 0


class RolloutRecording:
    """The recording of a run's episodes; empty if they are not recorded."""

    def __init__(self, dataset: OpenDataset | None = None, line: AppendOrder | None = None) -> None:
        self.recording = None if dataset is None else dataset.recording
        self.callbacks: list[DatasetCallback] = []
        if dataset is not None and line is not None:
            self.callbacks = [DatasetCallback(dataset, line)]

    def finish(self) -> None:
        """Complete the dataset, after the last episode."""
        for callback in self.callbacks:
            callback.finish()


@contextmanager
def recording_rollouts(
    demonstrations: Demonstrations | None,
    plan: Sequence[EpisodeSpec],
    done: Collection[EpisodeRecord],
    folder: Path,
    protocol: Mapping[str, Any],
) -> Iterator[RolloutRecording]:
    """Record the episodes of ``plan`` into the dataset, with those that earlier sessions left."""
    if demonstrations is None:
        yield RolloutRecording()
        return
    rows = {row.key: row for row in done}
    with demonstrations.open(folder, protocol) as dataset:
        line, missing = pending_episodes(dataset, plan, rows)
        lacking = [s for s in missing if s.key in rows and rows[s.key].outcome.counts]
        if lacking:
            raise UsageError(
                f"--record: {len(lacking)} episodes of {folder} were run without it, as "
                f"{lacking[0]}; leave --record out, or choose another --output_dir",
                code="run.not-recorded",
            )
        yield RolloutRecording(dataset, line)
