"""Upload datasets to the Hugging Face Hub with their version tag, and download them."""

from __future__ import annotations

import contextlib
import hashlib
import re
import shutil
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from proctor.datasets.format.info import VERSION, Info
from proctor.datasets.format.info_file import read_info
from proctor.datasets.source import chosen_revision
from proctor.errors import UsageError, strip_control_codes
from proctor.system.hub.client import http_errors
from proctor.system.hub.files import HubRepo
from proctor.system.hub.repositories import HUB_ID, fetch, hub_api, open_repo, revisions, uploading
from proctor.system.hub.uploads import exactly, named_few, other_files
from proctor.system.links import refuse_leaving_links

CARD_FILE = "README.md"
_META = ("meta/info.json", "meta/stats.json", "meta/*.parquet")
_UNFINISHED = ("images/*", "*.part", ".lock", ".claim", ".proctor/*", ".cache/*")
"""Files of unfinished episodes, edits and downloads, which are never uploaded nor named."""
_REPLACED = ["data/*", "videos/*", "meta/*"]
"""Files on the Hub that are removed if the local dataset lacks them."""
_PULLED, _ID_DIGITS = ".pulled", 16
_CONFLICT = 409
"""HTTP status for something that exists."""


def not_pushed(root: Path, include: Collection[str] = ()) -> str | None:
    """Return a note on the files in ``root`` that a push leaves out; None if there are none.

    A push uploads the files of the format and the card. ``include`` are patterns of more.
    """
    others = other_files(root, [*_format(read_info(root)), *_UNFINISHED, *include])
    if not others:
        return None
    return (
        f"not uploaded, since these are no files of the format: {named_few(others)}; proctor data "
        "push with --include=NAME,PATTERN uploads them"
    )


def push(
    root: Path,
    repo: str,
    *,
    private: bool | None = None,
    videos: bool = True,
    include: Collection[str] = (),
    hub: Any = None,
) -> str:
    """Upload the dataset in ``root``, move its version's tag to it, and return its URL.

    ``include`` are patterns of files to upload besides those of the format and the card.
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
    with uploading(repo, "nothing was uploaded"):
        address = str(api.create_repo(repo, private=private, exist_ok=True, **kind))
        uploaded = [*_format(info), *include]
        hidden = (n for n in other_files(root, uploaded) if n.startswith(".") or "/." in n)
        commit = api.upload_folder(
            repo_id=repo,
            folder_path=root,
            commit_message=f"{info.total_episodes} episodes, {info.total_frames} frames",
            allow_patterns=uploaded,
            ignore_patterns=[*exactly(list(hidden)), *(() if videos else ("videos/*",))],
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
        _move_tag(api, repo, newest)
    return address


def _move_tag(api: Any, repo: str, commit: str) -> None:
    """Let the version's tag name ``commit``.

    The Hub has no request that moves a tag. Creating it first shows whether the Hub creates tags
    now. Only if the Hub says that there is one, that is removed and created again, with more than
    one try; if these fail, the old one is put back.
    """
    kind = {"repo_type": "dataset"}
    refs = api.list_repo_refs(repo, **kind).tags
    before = next((tag.target_commit for tag in refs if tag.name == VERSION), None)
    if before == commit:
        return
    try:
        api.create_tag(repo, tag=VERSION, revision=commit, **kind)
    except http_errors() as error:
        response = getattr(error, "response", None)
        if before is None or response is None or response.status_code != _CONFLICT:
            raise _tag_not_moved(repo, commit, before) from None
    else:
        return
    api.delete_tag(repo, tag=VERSION, **kind)
    try:
        named = _create_tag(api, repo, (commit, commit, commit, before, before))
    except BaseException:  # Ctrl-C between two tries
        _create_tag(api, repo, (commit,))
        raise
    if named != commit:
        raise _tag_not_moved(repo, commit, named)


def _create_tag(api: Any, repo: str, commits: Sequence[str]) -> str | None:
    """Let the version's tag name the first of ``commits`` for which that succeeds; return it."""
    for number, commit in enumerate(commits):
        time.sleep(number)
        with contextlib.suppress(http_errors()):
            api.create_tag(repo, tag=VERSION, revision=commit, repo_type="dataset")
            return commit
    return None


def _tag_not_moved(repo: str, commit: str, named: str | None) -> UsageError:
    now = f"still names {named[:12]}" if named else "is missing"
    return UsageError(
        f"{repo} was uploaded as commit {commit[:12]}, but its tag {VERSION}, which LeRobot "
        f"downloads, {now}: run the command again",
        code="hub.tag-not-moved",
    )


def _format(info: Info) -> list[str]:
    """Return the patterns of the format's files and the card."""
    templates = [info.data_path, *([] if info.video_path is None else [info.video_path])]
    return [CARD_FILE, *_META, *(re.sub(r"\{[^}]*\}", "*", path) for path in templates)]


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


def pull(repo: str, root: Path, *, revision: str | None = None, videos: bool = True) -> Info:
    """Download a dataset into ``root``, which appears only when it is complete.

    An interrupted download of the same commit continues the next time.
    """
    _check_id(repo)
    if root.exists() and not (root.is_dir() and not any(root.iterdir())):
        raise UsageError(
            f"{root} exists; choose another folder (--root=DIR), or remove it",
            code="dataset.exists",
        )
    kept = "what was downloaded before is kept"
    wanted = revision or chosen_revision(repo, revisions(repo, "dataset", kept))
    source = open_repo(repo, "dataset", wanted, kept)
    part = _unfinished(root, source)
    fetch(source, part, lambda name: videos or not name.startswith("videos/"), kept)
    info = read_info(part)
    part.rename(root)
    return info


def _unfinished(root: Path, source: HubRepo) -> Path:
    """Return the folder of an unfinished download; remove those of other repositories or commits.

    So a dataset has the files of one commit alone.
    """
    identity = hashlib.sha256(f"{source.repo} {source.commit}".encode()).hexdigest()[:_ID_DIGITS]
    part = root.with_name(f".{root.name}.{identity}{_PULLED}")
    others = re.compile(rf"\.{re.escape(root.name)}\.([0-9a-f]{{{_ID_DIGITS}}}\.)?pulled")
    for left in root.parent.glob(f".*{_PULLED}"):
        if left != part and others.fullmatch(left.name):
            shutil.rmtree(left)
    return part


def _check_id(repo: str) -> None:
    if not HUB_ID.fullmatch(repo):
        raise UsageError(
            f"{strip_control_codes(repo, 100)!r} is not a Hub id; write it like me/dataset",
            code="hub.invalid-id",
        )
