"""Find a dataset in a folder, in LeRobot's home or on the Hub."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from proctor.datasets.format.info import INFO_FILE, VERSION, VERSIONS
from proctor.errors import DatasetError, HubUnreachable, UsageError
from proctor.system.files import read_regular_file, user_cache_folder
from proctor.system.hub.files import HubRepo, check_source
from proctor.system.hub.repositories import HUB_ID, HubLocation, download, revisions

_BRANCH = "main"
_COMMIT_FILE = f".cache/huggingface/download/{INFO_FILE}.metadata"
_COMMIT = re.compile(r"[0-9a-f]{40}")
_VERSION = re.compile(r"v(\d{1,4})\.(\d{1,4})")


@dataclass(frozen=True)
class HubDataset:
    """A dataset on the Hub at one revision, and the local folder of its downloads."""

    repo: str
    revision: str
    place: HubLocation


@dataclass(frozen=True)
class FoundDataset:
    """A dataset whose metadata are local."""

    name: str
    root: Path
    remote: HubDataset | None = None
    """Where missing files can be downloaded from; None if the dataset is complete."""

    def fetch(self, files: Sequence[str]) -> None:
        """Download those of ``files`` that are not local yet."""
        if self.remote is not None:
            missing = [glob.escape(name) for name in files if not (self.root / name).exists()]
            if missing:
                download(self.remote.repo, self.remote.revision, missing, self.remote.place)


def lerobot_home() -> Path:
    """Return the folder in which LeRobot stores datasets."""
    if os.environ.get("LEROBOT_HOME"):
        raise UsageError(
            "LEROBOT_HOME is no longer used; set HF_LEROBOT_HOME instead",
            code="env.renamed-variable",
        )
    if home := os.environ.get("HF_LEROBOT_HOME"):
        return Path(home).expanduser()
    if home := os.environ.get("HF_HOME"):
        return Path(home).expanduser() / "lerobot"
    return user_cache_folder() / "huggingface" / "lerobot"


def find(
    path_or_id: str | Path, root: Path | None = None, revision: str | None = None
) -> FoundDataset:
    """Find a dataset; the metadata of a dataset on the Hub are downloaded.

    Args:
        root: folder of the dataset, or of its download. Without it, a Hub id first names a folder
            in LeRobot's home, unless a ``revision`` is given.
    """
    here = find_local(path_or_id, root, revision)
    if here is not None:
        return here
    place = HubLocation("dataset", None if root else lerobot_home() / "hub", root)
    return _fetched(str(path_or_id), revision, place)


def find_local(
    path_or_id: str | Path, root: Path | None = None, revision: str | None = None
) -> FoundDataset | None:
    """Find a dataset on this machine; return None if it may be on the Hub."""
    name = str(path_or_id)
    here = Path(path_or_id).expanduser() if root is None else root.expanduser()
    if (here / INFO_FILE).exists():
        return _lying(name, here, root, revision)
    if root is None and (here.is_dir() or not isinstance(path_or_id, str) or not _is_id(name)):
        what = f"it has no {INFO_FILE}" if here.is_dir() else "no such folder"
        raise DatasetError(f"{name} is not a dataset: {what}", code="dataset.not-found")
    if root is not None and (not isinstance(path_or_id, str) or not _is_id(name)):
        raise DatasetError(
            f"{here} is not a dataset: it has no {INFO_FILE}", code="dataset.not-found"
        )
    at_home = lerobot_home() / name
    if root is None and revision is None and (at_home / INFO_FILE).exists():
        return FoundDataset(name, at_home)
    return None


def _lying(name: str, here: Path, root: Path | None, revision: str | None) -> FoundDataset | None:
    """Return a local dataset, or None if it is the download of another revision."""
    commit = _commit_of(here) if root is not None and _is_id(name) else None
    if commit is None and revision is not None:
        raise UsageError(
            f"{here} is not a download from the Hub, so it has no revision {revision!r}; leave out "
            "the revision, or the folder",
            code="dataset.unknown-revision",
        )
    if commit is None:
        return FoundDataset(name, here)
    check_source(here, HubRepo(name, "dataset", commit))
    if revision not in (None, commit):
        return None
    return FoundDataset(name, here, HubDataset(name, commit, HubLocation("dataset", folder=here)))


def _commit_of(folder: Path) -> str | None:
    """Return the commit that a folder was downloaded from, or None."""
    try:
        first = (
            read_regular_file(folder / _COMMIT_FILE, 1000).split(b"\n")[0].decode(errors="replace")
        )
    except OSError:
        return None
    return first if _COMMIT.fullmatch(first) else None


def _is_id(name: str) -> bool:
    return bool(HUB_ID.fullmatch(name))


def _fetched(repo: str, revision: str | None, place: HubLocation) -> FoundDataset:
    if revision is None:
        try:
            revision = chosen_revision(repo, revisions(repo, "dataset"))
        except HubUnreachable as unreachable:
            return _kept(repo, place, unreachable)
    root = download(repo, revision, ["meta/*"], place)
    commit = root.name if place.folder is None else _commit_of(root)
    revision = commit or revision  # later downloads match these metadata
    return FoundDataset(repo, root, HubDataset(repo, revision, place))


def _kept(repo: str, place: HubLocation, unreachable: HubUnreachable) -> FoundDataset:
    """Return an earlier download, the newest version first."""
    offline = HubLocation(place.kind, place.cache, place.folder, offline=True)
    for revision in (*VERSIONS, _BRANCH):
        try:
            return FoundDataset(repo, download(repo, revision, None, offline))
        except HubUnreachable:
            continue
    raise unreachable


def chosen_revision(repo: str, names: Sequence[str]) -> str:
    """Return the branch or tag to read: the newest version that Proctor knows."""
    tagged = {name for name in names if _VERSION.fullmatch(name)}
    for version in VERSIONS:
        if version in tagged:
            return version
    if not tagged:
        return _BRANCH
    newest = max(tagged, key=lambda name: tuple(map(int, name[1:].split("."))))
    is_newer = tuple(map(int, newest[1:].split("."))) > tuple(map(int, VERSION[1:].split(".")))
    advice = "run: pip install --upgrade proctor" if is_newer else "convert it with LeRobot"
    raise UsageError(
        f"{repo} is a dataset of {newest}; Proctor reads {', '.join(VERSIONS)}; {advice}",
        code="dataset.unknown-version",
    )
