"""What can be wrong with a dataset: a finding says what, where, and the command that mends it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

_NAMED = 5
"""Episodes of a finding that are named one by one."""
_MOST_REMOVED = 20


class FindingLevel(Enum):
    """Whether a finding fails a check."""

    ERROR = "error"
    """Who reads or trains on it gets something wrong, or nothing."""
    WARNING = "warning"
    """Readers get along with it."""


@dataclass(frozen=True)
class DatasetFinding:
    """One thing that is wrong, however many episodes it is wrong in."""

    level: FindingLevel
    kind: str
    """A name that stays, for scripts: ``video.short``."""
    what: str
    where: str
    """A file below the dataset's folder, and the episodes where it is not all of them."""
    mend: str = ""
    """The command that mends it; empty where only whoever made the dataset can."""
    leave_out: tuple[int, ...] = ()
    """Episodes without which it would be mended; the command leaves out those of all findings."""


@dataclass(frozen=True)
class RepairCommands:
    """The commands that mend the dataset in ``root``."""

    root: Path

    def data(self, verb: str, *words: str) -> str:
        """Return ``proctor data VERB`` of this dataset."""
        return shlex.join(["proctor", "data", verb, str(self.root), *words])

    def check(self) -> str:
        """Return the command that rewrites what follows from the rest: totals and tasks."""
        return self.data("check", "--mend")

    def stats(self, *, pictures: bool = False) -> str:
        """Return the command that computes the statistics anew, those of ``pictures`` too."""
        return self.data("stats", *(["--images"] if pictures else []), "--in_place")

    def rewritten(self) -> str:
        """Return the command that writes the tables anew, as every edit does, and nothing else."""
        return self.stats()

    def delete(self, episodes: Sequence[int]) -> str:
        """Return the command that makes a dataset without some episodes, beside this one."""
        return self.data("delete", f"--episodes={ranges(episodes)}", f"--output={self.root}_mended")

    def without_feature(self, key: str) -> str:
        """Return the command that makes a dataset without a feature, beside this one."""
        return self.data("remove-feature", key, f"--output={self.root}_mended")

    def remove(self, paths: Sequence[Path]) -> str:
        """Return the command that removes files or folders that nothing refers to."""
        folders = ["-r"] if any(path.is_dir() for path in paths) else []
        if len(paths) > _MOST_REMOVED:
            return ""  # nobody would read that line; the files are named in --json
        return shlex.join(["rm", *folders, "--", *map(str, paths)])


def with_repairs(
    findings: Sequence[DatasetFinding], mends: RepairCommands, n_episodes: int
) -> list[DatasetFinding]:
    """Return the findings, those that some episodes have with one command that leaves all out."""
    broken = sorted({episode for finding in findings for episode in finding.leave_out})
    if len(broken) >= n_episodes:
        return list(findings)  # there would be nothing left
    return [
        replace(finding, mend=mends.delete(broken)) if finding.leave_out else finding
        for finding in findings
    ]


def ranges(numbers: Sequence[int]) -> str:
    """Return ``1,4-7`` for 1, 4, 5, 6, 7."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def episodes_text(episodes: Sequence[int]) -> str:
    """Return ``episode 3`` or ``episodes 3, 4 and 27 more``."""
    shown = ", ".join(map(str, episodes[:_NAMED]))
    left = len(episodes) - _NAMED
    return f"episode{'s' if len(episodes) > 1 else ''} {shown}" + (
        f" and {left} more" if left > 0 else ""
    )
