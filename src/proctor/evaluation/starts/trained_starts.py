"""Which starts trained the policy of an evaluation."""

from __future__ import annotations

from pathlib import Path

from proctor import plugins
from proctor.benchmarks.base import Benchmark
from proctor.benchmarks.starts import start_source
from proctor.policies.base import PolicyConfig
from proctor.runs.folder import write_run_file
from proctor.trained_starts import TRAINED_STARTS_FILE, TrainedStarts, read_trained_starts

_NOT_STATED = (
    "the checkpoint does not say which starts trained it (it is of LeRobot, or of an older Proctor)"
)


def trained_starts_of(config: PolicyConfig, benchmark: Benchmark) -> TrainedStarts | None:
    """Return the starts of this benchmark that trained a policy; None: no training made it."""
    plugin = plugins.find_policy(config.type)
    if not plugin.is_trained:
        return None
    found = None
    reason = f"a policy of type {config.type} does not say which starts trained it"
    if plugin.local_checkpoint is not None:
        found, reason = read_trained_starts(plugin.local_checkpoint(config)), _NOT_STATED
    if found is None:
        found = TrainedStarts(unknown=(reason,))
    return found.for_benchmark(start_source(benchmark))


def write_trained_starts(folder: Path, trained: TrainedStarts | None) -> None:
    """Write the starts to a run folder, whose results are compared with them."""
    if trained is None:
        (folder / TRAINED_STARTS_FILE).unlink(missing_ok=True)
    else:
        write_run_file(folder / TRAINED_STARTS_FILE, trained.encode())
