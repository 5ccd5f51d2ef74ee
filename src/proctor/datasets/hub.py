"""Upload datasets to the Hugging Face Hub with their version tag, and download them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from proctor.datasets.format.info import VERSION, Info
from proctor.datasets.format.info_file import read_info
from proctor.datasets.source import chosen_revision
from proctor.errors import UsageError, strip_control_codes
from proctor.system.hub import HUB_ID, explaining_hub_errors, explaining_refusals, hub_api
from proctor.system.links import refuse_leaving_links

CARD_FILE = "README.md"
_NOT_PUSHED = ("images/*", ".*", "*.part")
"""Images of unfinished episodes, private files and unfinished files."""
_REPLACED = ["data/*", "videos/*", "meta/*"]
"""Files on the Hub that are removed if the local dataset lacks them."""


def push(
    root: Path, repo: str, *, private: bool | None = None, videos: bool = True, hub: Any = None
) -> str:
    """Upload the dataset in ``root``, move its version's tag to it, and return its URL.

    Raises:
        DatasetError: there is no dataset.
        UsageError: it has an old version, ``repo`` is not a Hub id, or the Hub refuses.
    """
    _check_id(repo)
    info = read_info(root)
    refuse_leaving_links(root)
    if info.version != VERSION:
        raise UsageError(
            f"{root} is {info.version}; convert it first: proctor data convert {root} --output=DIR",
            code="dataset.old-version",
        )
    api = hub or hub_api()
    kind = {"repo_type": "dataset"}
    with explaining_hub_errors(repo, None, "nothing was uploaded"), explaining_refusals(repo):
        address = str(api.create_repo(repo, private=private, exist_ok=True, **kind))
        left_out = [*_NOT_PUSHED, *(() if videos else ("videos/*",))]
        commit = api.upload_folder(
            repo_id=repo,
            folder_path=root,
            commit_message=f"{info.total_episodes} episodes, {info.total_frames} frames",
            ignore_patterns=left_out,
            delete_patterns=_REPLACED,
            **kind,
        )
        newest = commit.oid
        if not (root / CARD_FILE).is_file() and not api.file_exists(repo, CARD_FILE, **kind):
            card = api.upload_file(
                path_or_fileobj=card_of(info, repo).encode(),
                path_in_repo=CARD_FILE,
                repo_id=repo,
                commit_message="The dataset's card",
                **kind,
            )
            newest = card.oid
        if any(tag.name == VERSION for tag in api.list_repo_refs(repo, **kind).tags):
            api.delete_tag(repo, tag=VERSION, **kind)
        api.create_tag(repo, tag=VERSION, revision=newest, **kind)
    return address


def card_head(repo: str) -> str:
    """Return the head of a dataset card: the YAML block that the Hub reads, and a title."""
    return f"""\
---
task_categories:
- robotics
tags:
- LeRobot
configs:
- config_name: default
  data_files: data/*/*.parquet
---

# {repo}
"""


def card_of(info: Info, repo: str) -> str:
    """Return the dataset card: the text of the dataset's page on the Hub."""
    features = "\n".join(
        f"| `{key}` | {entry['dtype']} | {' x '.join(map(str, entry['shape']))} |"
        for key, entry in info.features.items()
    )
    return f"""\
{card_head(repo)}
A dataset of robot demonstrations in the format LeRobotDataset {info.version}: {info.total_episodes}
episodes, {info.total_frames} frames at {info.fps} a second, {info.total_tasks} tasks\
{f", robot {info.robot_type}" if info.robot_type else ""}.

| feature | type | shape |
|---|---|---|
{features}

Opened by `proctor.datasets.open("{repo}")` of Proctor and by LeRobot.
"""


def pull(
    repo: str, root: Path, *, revision: str | None = None, videos: bool = True, hub: Any = None
) -> Info:
    """Download a dataset into ``root``, which appears only when it is complete.

    An interrupted download continues the next time.

    Raises:
        UsageError: ``root`` exists, ``repo`` is not a Hub id or has no known version, or the Hub
            refuses.
        DatasetError: the repository is not a dataset.
    """
    _check_id(repo)
    if root.exists() and not (root.is_dir() and not any(root.iterdir())):
        raise UsageError(
            f"{root} exists; choose another folder (--root=DIR), or remove it",
            code="dataset.exists",
        )
    api = hub or hub_api()
    part = root.with_name(f".{root.name}.pulled")
    with explaining_hub_errors(repo, revision, "what was downloaded before is kept"):
        refs = api.list_repo_refs(repo, repo_type="dataset")
        names = [ref.name for ref in (*refs.branches, *refs.tags)]
        wanted = revision or chosen_revision(repo, names)
        part.mkdir(parents=True, exist_ok=True)
        api.snapshot_download(
            repo,
            repo_type="dataset",
            revision=wanted,
            local_dir=part,
            ignore_patterns=None if videos else ["videos/*"],
        )
        info = read_info(part)
        shutil.rmtree(part / ".cache", ignore_errors=True)  # the download's own records
        part.rename(root)
    return info


def _check_id(repo: str) -> None:
    if not HUB_ID.fullmatch(repo):
        raise UsageError(
            f"{strip_control_codes(repo, 100)!r} is not a Hub id; write it like me/dataset",
            code="hub.invalid-id",
        )
