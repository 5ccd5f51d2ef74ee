"""The Hugging Face Hub: downloads and uploads, and their errors as one-line messages."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from proctor.errors import HubUnreachable, UsageError, strip_control_codes
from proctor.system.caches import wrong_files
from proctor.system.hub.client import HubClient, bad_answer, bounded_session, http_errors
from proctor.system.hub.files import (
    HubFile,
    HubRepo,
    fetch_to_cache,
    fetch_to_folder,
    kept_snapshot,
    note_ref,
    own_digests,
    ref_names,
    resolve,
)
from proctor.system.platform.optional import LOAD_ERRORS, import_failure

HUB_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*/[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class HubLocation:
    """The kind of a repository and the folder for its download."""

    kind: str = "model"
    cache: Path | None = None
    """Cache folder of all downloads; None: Hugging Face's own."""
    folder: Path | None = None
    """Folder of this download, with plain files and no commits; None: below ``cache``."""
    offline: bool = False
    """Use only files that were downloaded before."""

    @property
    def cache_folder(self) -> Path:
        """The cache folder of all downloads."""
        from huggingface_hub import constants

        return Path(self.cache or constants.HF_HUB_CACHE).expanduser()


MODELS = HubLocation()


def download(
    repo: str,
    revision: str | None,
    files: Sequence[str] | None = None,
    location: HubLocation = MODELS,
) -> Path:
    """Return the folder that holds ``repo``; in a cache, the folder's name is the commit.

    ``files`` are patterns of the files to download. Their bytes are those of the Hub's listing.
    Without a network, the folder is that of an earlier download.
    """
    with explaining_hub_errors(repo, revision), HubClient() as client:
        try:
            if location.offline:
                raise ConnectionError("no file was downloaded before")
            source = resolve(client, repo, location.kind, revision)
            wanted = _wanted(source.listing(client) or {}, files)
        except (OSError, http_errors()) as error:
            kept = _kept(repo, revision, files, location)
            if kept is None or _is_refused_revision(error):
                raise
            return kept
        if location.folder is not None:
            fetch_to_folder(client, source, wanted, location.folder, notes=True)
            return location.folder
        folder = fetch_to_cache(client, source, wanted, location.cache_folder)
        note_ref(location.cache_folder, source, revision)
        return folder


def _wanted(listing: Mapping[str, HubFile], files: Sequence[str] | None) -> list[HubFile]:
    """Return the listed files that match a pattern."""
    if files is None:
        return list(listing.values())
    names = {name for name in files if not set(name) & set("*?[")}
    patterns = [name for name in files if name not in names]
    return [
        file
        for path, file in listing.items()
        if path in names or any(fnmatch(path, pattern) for pattern in patterns)
    ]


def _is_refused_revision(error: Exception) -> bool:
    from huggingface_hub.errors import RevisionNotFoundError

    return isinstance(error, RevisionNotFoundError)


def _kept(
    repo: str, revision: str | None, files: Sequence[str] | None, location: HubLocation
) -> Path | None:
    """Return the folder of an earlier download if it is complete, or None."""
    if location.folder is not None:
        is_there = location.folder.is_dir() and any(location.folder.iterdir())
        return location.folder if is_there else None
    source = kept_snapshot(location.cache_folder, repo, location.kind, revision)
    if source is None:
        return None
    snapshot = location.cache_folder / source.folder_name / "snapshots" / source.commit
    listing = source.listing(None)
    if listing is None:  # another program downloaded it
        there = [path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*")]
        expected = own_digests(snapshot, there)
    else:
        expected = {snapshot / file.path: file.digest for file in _wanted(listing, files)}
        if not all(path.is_file() for path in expected):
            return None
    for path in wrong_files(expected):
        raise UsageError(
            f"{path} has other bytes than the Hub's listing states; remove it, and run the command "
            "again where there is a network",
            code="hub.wrong-bytes",
        )
    return snapshot


def open_repo(repo: str, kind: str, revision: str | None, consequence: str) -> HubRepo:
    """Return a repository at the commit of ``revision``."""
    with explaining_hub_errors(repo, revision, consequence), HubClient() as client:
        return resolve(client, repo, kind, revision)


def fetch(
    source: HubRepo, folder: Path, is_wanted: Callable[[str], bool], consequence: str
) -> None:
    """Put the wanted files of a repository into a folder, compared with the Hub's listing."""
    with explaining_hub_errors(source.repo, source.commit, consequence), HubClient() as client:
        listing = (source.listing(client) or {}).values()
        wanted = [file for file in listing if is_wanted(file.path)]
        fetch_to_folder(client, source, wanted, folder, notes=False)


def revisions(repo: str, kind: str, consequence: str | None = None) -> list[str]:
    """Return the names of the branches and tags of ``repo``."""
    with explaining_hub_errors(repo, None, consequence), HubClient() as client:
        return ref_names(client, repo, kind)


def hub_api() -> Any:
    """Return the Hub's API."""
    try:
        from huggingface_hub import HfApi
    except LOAD_ERRORS as error:
        raise import_failure(error, "huggingface_hub", "dataset") from None
    return HfApi()


@contextlib.contextmanager
def explaining_hub_errors(
    repo: str, revision: str | None, consequence: str | None = None
) -> Iterator[None]:
    """Turn errors of Hugging Face's library into one line each.

    ``consequence`` says what a command leaves undone if the Hub is unreachable. Without it, the
    message suggests a local folder.
    """
    try:
        from huggingface_hub.errors import (
            GatedRepoError,
            HFValidationError,
            RepositoryNotFoundError,
            RevisionNotFoundError,
        )
    except LOAD_ERRORS as error:
        raise import_failure(error, "huggingface_hub", "hub") from None
    try:
        yield
    except GatedRepoError:
        raise UsageError(
            f"{repo} is gated; ask for access on the Hub and log in", code="hub.gated"
        ) from None
    except RepositoryNotFoundError:
        raise UsageError(
            f"{repo} is neither a local folder nor a repository on the Hub", code="hub.not-found"
        ) from None
    except RevisionNotFoundError:
        raise UsageError(
            f"{repo} has no revision {revision!r}", code="hub.unknown-revision"
        ) from None
    except HFValidationError as error:
        raise UsageError(f"{repo} is not a Hub id: {error}", code="hub.invalid-id") from None
    except (OSError, http_errors()) as error:
        raise _unreachable(repo, error, consequence) from None


@contextlib.contextmanager
def uploading(repo: str, consequence: str | None = None) -> Iterator[None]:
    """Bound what the Hub answers to uploads, and turn errors into one line each."""
    from huggingface_hub.errors import HFValidationError

    malformed = (AttributeError, KeyError, TypeError, IndexError, ValueError, RecursionError)
    with explaining_hub_errors(repo, None, consequence), explaining_refusals(repo):
        try:
            with bounded_session():
                yield
        except HFValidationError:
            raise
        except malformed as error:  # of the library that reads the answers
            raise bad_answer(f"{type(error).__name__}: {error}") from error


def _unreachable(repo: str, error: Exception, consequence: str | None) -> HubUnreachable:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if consequence is not None:
        return HubUnreachable(f"{repo}: the Hub cannot be reached ({reason}); {consequence}")
    return HubUnreachable(
        f"{repo} is not a local folder and the Hub cannot be reached ({reason}); give a local "
        "folder, or download it first where there is a network"
    )


@contextlib.contextmanager
def explaining_refusals(repo: str) -> Iterator[None]:
    """Turn the Hub's permission errors into one line."""
    from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

    try:
        yield
    except RepositoryNotFoundError:
        raise UsageError(
            f"{repo} cannot be created or is not yours: log in (hf auth login)",
            code="hub.refused",
        ) from None
    except HfHubHTTPError as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise UsageError(
            f"the Hub refuses {repo}: {strip_control_codes(reason, 300)}", code="hub.refused"
        ) from None
