"""``proctor eval --record``: the episodes of an evaluation are kept as a dataset, all of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from proctor.benchmarks.base import Benchmark
from proctor.callbacks.dataset import AppendOrder, DatasetCallback, OpenDataset
from proctor.callbacks.staged_episodes import Keep
from proctor.config.evaluation import EvalConfig
from proctor.config.recording import RecordDatasetSettings, RecordSettings
from proctor.errors import UsageError
from proctor.evaluation.demonstrations import Demonstrations, demonstrations, pending_episodes
from proctor.features import REWARD, SUCCESS
from proctor.runs.journal import EpisodeRecord
from proctor.types import EpisodeSpec


def rollouts(config: EvalConfig, benchmark: Benchmark, folder: Path) -> Demonstrations | None:
    """Check that the episodes can be recorded as asked; None where they are not to be.

    ``folder`` is the run folder.

    Raises:
        UsageError: with one line that says what to change.
    """
    if config.record is None:
        return None
    if config.record.exists() and not config.resume:
        raise UsageError(f"--record: {config.record} exists; choose another folder")
    extra = [REWARD, SUCCESS] if benchmark.judged else [REWARD]
    settings = RecordSettings(keep=Keep.ALL, images=config.record_images, extra=extra)
    dataset = RecordDatasetSettings(root=config.record)
    dataset.validate()
    return demonstrations(benchmark, dataset, settings, folder)


class RecordedRollouts:
    """What keeps the episodes of a run; empty where they are not kept."""

    def __init__(self, dataset: OpenDataset | None = None, line: AppendOrder | None = None) -> None:
        self.recording = None if dataset is None else dataset.recording
        self.callbacks: list[DatasetCallback] = []
        if dataset is not None and line is not None:
            self.callbacks = [DatasetCallback(dataset, line)]

    def finish(self) -> None:
        """Every episode has ended that will."""
        for callback in self.callbacks:
            callback.finish()


@contextmanager
def recording_rollouts(
    shown: Demonstrations | None,
    plan: Sequence[EpisodeSpec],
    done: Collection[EpisodeRecord],
    folder: Path,
    protocol: Mapping[str, Any],
) -> Iterator[RecordedRollouts]:
    """Keep what is run of ``plan`` in the dataset, with what earlier sessions left waiting.

    Raises:
        UsageError: episodes of the run were not recorded when they were run.
        RunFolderError: the dataset was changed since, or cannot be written.
    """
    if shown is None:
        yield RecordedRollouts()
        return
    rows = {row.key: row for row in done}
    with shown.open(folder, protocol) as dataset:
        line, missing = pending_episodes(dataset, plan, rows)
        lacking = [s for s in missing if s.key in rows and rows[s.key].outcome.counts]
        if lacking:
            raise UsageError(
                f"--record: {len(lacking)} episodes of {folder} were run without it, as "
                f"{lacking[0]}; leave --record out, or choose another --output_dir"
            )
        yield RecordedRollouts(dataset, line)
