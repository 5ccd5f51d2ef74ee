"""Findings of a dataset check: what is wrong, where, and the command that repairs it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from proctor.number_text import number_ranges

_NAMED = 5
"""Episodes of a finding that are listed by number."""
_MOST_REMOVED = 20


class FindingLevel(Enum):
    """Whether a finding fails a check."""

    ERROR = "error"
    """Reading or training gives wrong data, or fails."""
    WARNING = "warning"
    """Readers can handle it."""


@dataclass(frozen=True)
class DatasetFinding:
    """One problem, in any number of episodes."""

    level: FindingLevel
    kind: str
    """A stable name for scripts, such as ``video.short``."""
    what: str
    where: str
    """A file relative to the dataset's folder, and the episodes if not all are affected."""
    mend: str = ""
    """The command that repairs it; empty if only the dataset's author can."""
    leave_out: tuple[int, ...] = ()
    """Episodes to delete as a repair; the command deletes those of all findings."""


@dataclass(frozen=True)
class RepairCommands:
    """The commands that repair the dataset in ``root``."""

    root: Path

    def data(self, verb: str, *words: str) -> str:
        """Return ``proctor data VERB`` for this dataset."""
        return shlex.join(["proctor", "data", verb, str(self.root), *words])

    def check(self) -> str:
        """Return the command that rewrites totals and tasks."""
        return self.data("check", "--mend")

    def stats(self, *, pictures: bool = False) -> str:
        """Return the command that computes the statistics again, of images with ``pictures``."""
        return self.data("stats", *(["--images"] if pictures else []), "--in_place")

    def rewritten(self) -> str:
        """Return the command that only writes the tables again, as every edit does."""
        return self.stats()

    def resume(self) -> str:
        """Return the command that continues a recording of Proctor into the dataset."""
        return shlex.join(["proctor", "record", f"--dataset.root={self.root}", "--resume"])

    def delete(self, episodes: Sequence[int]) -> str:
        """Return the command that creates a copy of the dataset without some episodes."""
        return self.data(
            "delete", f"--episodes={number_ranges(episodes)}", f"--output={self.root}_mended"
        )

    def without_feature(self, key: str) -> str:
        """Return the command that creates a copy of the dataset without a feature."""
        return self.data("remove-feature", key, f"--output={self.root}_mended")

    def remove(self, paths: Sequence[Path]) -> str:
        """Return the command that removes unused files or folders."""
        folders = ["-r"] if any(path.is_dir() for path in paths) else []
        if len(paths) > _MOST_REMOVED:
            return ""  # too long to read; --json names the files
        return shlex.join(["rm", *folders, "--", *map(str, paths)])


def with_repairs(
    findings: Sequence[DatasetFinding], mends: RepairCommands, n_episodes: int
) -> list[DatasetFinding]:
    """Return the findings; those about episodes share one command that deletes all of these."""
    broken = sorted({episode for finding in findings for episode in finding.leave_out})
    if len(broken) >= n_episodes:
        return list(findings)  # no episode would remain
    return [
        replace(finding, mend=mends.delete(broken)) if finding.leave_out else finding
        for finding in findings
    ]


def episodes_text(episodes: Sequence[int]) -> str:
    """Return ``episode 3`` or ``episodes 3, 4 and 27 more``."""
    shown = ", ".join(map(str, episodes[:_NAMED]))
    left = len(episodes) - _NAMED
    return f"episode{'s' if len(episodes) > 1 else ''} {shown}" + (
        f" and {left} more" if left > 0 else ""
    )
