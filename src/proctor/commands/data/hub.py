"""``proctor data push`` and ``proctor data pull``: upload and download datasets."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proctor.commands.data.arguments import DatasetCommand, find_dataset, parse_names
from proctor.config.flags.command import CommandConfig, argument
from proctor.errors import strip_control_codes
from proctor.settings import setting


@dataclass(kw_only=True)
class DataPushCommand(DatasetCommand):
    """Upload a dataset to the Hugging Face Hub.

    Uploads the files of the format and the card. Other files are named and left out.
    Writes a dataset card if there is none, and moves the tag of the dataset's format version to the
    new commit, because LeRobot downloads that tag. Files on the Hub that the dataset no longer has
    are removed there.
    """

    repo_id: str = field(metadata=argument("ID", "id of the dataset on the Hub: user/name"))
    private: bool | None = setting(
        None,
        "make a new repository private (default: the setting of the Hub account)",
        placeholder="true",
    )
    videos: bool = setting(
        True, "upload videos; false: upload none, and remove those of an earlier upload"
    )
    include: str | None = setting(
        None,
        "other files to upload too, comma-separated: names or patterns from the dataset's "
        "folder, as LICENSE,notes/* (default: none)",
        placeholder="NAME,PATTERN",
    )

    def run(self) -> int:
        """Upload the dataset, print its address and return the exit code."""
        root, include = find_dataset(self.dataset), parse_names(self.include or "")
        address = push_and_name(
            root, self.repo_id, private=self.private, videos=self.videos, include=include
        )
        print(strip_control_codes(address))
        return 0


def push_and_name(root: Path, repo: str, **options: Any) -> str:
    """Upload a dataset, print a note on the files that are left out, and return the address."""
    from proctor.datasets.hub import not_pushed, push

    address = push(root, repo, **options)
    if (note := not_pushed(root, options.get("include", ()))) is not None:
        print(strip_control_codes(f"note: {note}"), file=sys.stderr)
    return address


@dataclass(kw_only=True)
class DataPullCommand(CommandConfig):
    """Download a dataset from the Hugging Face Hub.

    An interrupted download continues where it stopped.
    """

    repo_id: str = field(metadata=argument("ID", "id of the dataset on the Hub: user/name"))
    root: Path | None = setting(
        None,
        "folder of the download, which must not exist (default: $HF_LEROBOT_HOME/ID)",
        placeholder="DIR",
    )
    revision: str | None = setting(
        None,
        "branch, tag or commit (default: the tag v3.0, else the newest older version that "
        "can be read)",
        placeholder="REV",
    )
    videos: bool = setting(True, "download videos; false: download the other files only")

    def run(self) -> int:
        """Download the dataset, print its size and return the exit code."""
        from proctor.datasets.hub import pull
        from proctor.datasets.source import lerobot_home

        root = self.root or lerobot_home() / self.repo_id
        info = pull(self.repo_id, root, revision=self.revision, videos=self.videos)
        print(strip_control_codes(f"{root}: {info.version}, {info.total_episodes:,} episodes"))
        return 0
