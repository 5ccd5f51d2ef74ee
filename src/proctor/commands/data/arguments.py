"""Arguments that the verbs of ``proctor data`` share: datasets, episodes, destinations."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from proctor.config.flags.command import CommandConfig, argument
from proctor.errors import UsageError, strip_control_codes
from proctor.settings import setting

if TYPE_CHECKING:
    from proctor.datasets.edit.build import BuiltDataset
    from proctor.datasets.edit.destination import Destination
    from proctor.datasets.edit.edit_plan import EditPlan, SourceDataset

EPISODES = "0,3,5-9"
"""How help texts write a list of episodes."""
_MOST_EPISODES = 10_000_000
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


@dataclass(kw_only=True)
class DatasetCommand(CommandConfig):
    """A verb that takes one dataset."""

    dataset: str = field(
        metadata=argument(
            "DATASET", "folder of the dataset, or its id (user/name) under $HF_LEROBOT_HOME"
        )
    )


@dataclass(kw_only=True)
class EditCommand(DatasetCommand):
    """A verb that writes an edited dataset: to a new folder, or in place."""

    help_group: ClassVar[str] = "Result"

    output: Path | None = setting(
        None,
        "folder of the edited dataset, which must not exist; give this or --in_place "
        "(required without --in_place)",
        placeholder="DIR",
        alias="new_root",
    )
    in_place: bool = setting(False, "replace DATASET, in one atomic step at the end")
    backup: bool = setting(
        True,
        "with --in_place: keep the replaced dataset beside DATASET as DATASET_old (or "
        "_old_2, _old_3, ...); false removes it",
    )

    def edit(self, plan: Callable[[SourceDataset], EditPlan]) -> int:
        """Edit the dataset as planned, print what was written, and return the exit code."""
        from proctor.datasets.edit.build import edit

        root = find_dataset(self.dataset)
        print_result(edit(root, self.destination(root), plan))
        return 0

    def destination(self, root: Path) -> Destination:
        """Return where the edited dataset goes."""
        from proctor.datasets.edit.destination import in_place_destination, new_destination

        if (self.output is not None) == self.in_place:
            raise UsageError(
                "where does the result go? Give --output=DIR for a new dataset, or --in_place to "
                "replace this one",
                code="flag.conflict" if self.in_place else "flag.missing",
            )
        if self.output is not None:
            if not self.backup:
                raise UsageError(
                    "--backup=false is for --in_place: --output leaves DATASET unchanged",
                    code="flag.conflict",
                )
            return new_destination(self.output)
        return in_place_destination(root, keep_old=self.backup)


def find_dataset(name: str) -> Path:
    """Return the folder of a dataset: ``name`` itself, or an id's folder in LeRobot's home."""
    from proctor.config.flags.parsing import path_of
    from proctor.datasets.source import lerobot_home
    from proctor.system.hub.repositories import HUB_ID

    path = path_of(name, "DATASET")
    if path.is_dir():
        return path
    if not HUB_ID.fullmatch(name):
        raise UsageError(f"{name}: no such folder", code="dataset.not-found")
    root = lerobot_home() / name
    if not root.is_dir():
        raise UsageError(
            f"{name} is neither a folder nor a dataset in {lerobot_home()}; "
            f"proctor data pull {name} downloads it",
            code="dataset.not-found",
        )
    return root


def parse_episodes(text: str) -> list[int]:
    """Return the episode indices in ``0,3,5-9`` or ``[0, 3]``."""
    inner = text.strip().removeprefix("[").removesuffix("]")
    found: list[int] = []
    for word in (word.strip() for word in inner.split(",") if word.strip()):
        match = _RANGE.fullmatch(word)
        if match is None:
            raise UsageError(
                f"{strip_control_codes(word, 60)!r} is not an episode; write {EPISODES}",
                code="flag.invalid-value",
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last < first + _MOST_EPISODES:
            raise UsageError(
                f"{word!r} is not a range of episodes; write the smaller number first",
                code="flag.invalid-value",
            )
        found += range(first, last + 1)
    if not found:
        raise UsageError(f"the list of episodes is empty; write {EPISODES}", code="flag.empty")
    return found


def parse_names(text: str) -> list[str]:
    """Return the names in ``a,b`` or ``['a', 'b']``."""
    inner = text.strip().removeprefix("[").removesuffix("]")
    return [name.strip(" '\"") for name in inner.split(",") if name.strip()]


def parse_mapping(flag: str, text: str, example: str) -> dict[str, Any]:
    """Return the map that a flag's value holds."""
    from proctor.parsing import parse_flow

    try:
        found = parse_flow(text)
    except ValueError as bad:
        raise UsageError(
            f"--{flag}: {bad}; write it like '{example}'", code="flag.invalid-value"
        ) from None
    if not isinstance(found, dict) or not found:
        raise UsageError(
            f"--{flag} must be a map; write it like '{example}'", code="flag.invalid-value"
        )
    return {str(key): value for key, value in found.items()}


def print_result(built: BuiltDataset) -> None:
    """Print a written dataset's size and backup, and the episodes that were encoded again."""
    info = built.info
    counted = [
        f"{n:,} {word}{'' if n == 1 else 's'}"
        for n, word in (
            (info.total_episodes, "episode"),
            (info.total_frames, "frame"),
            (info.total_tasks, "task"),
        )
    ]
    print(strip_control_codes(f"{built.root}: {', '.join(counted)}"))
    for key, episodes in built.again.items():
        named = ", ".join(map(str, episodes[:10])) + (" ..." if len(episodes) > 10 else "")
        print(
            strip_control_codes(
                f"{key}: episodes {named} could not be copied (they do not begin at a key frame): "
                "these were encoded again"
            )
        )
    if built.backup is not None:
        print(strip_control_codes(f"backup: {built.backup} (the dataset before this edit)"))
    elif built.replaced:
        print("no backup: --backup=false removed the dataset before this edit")
