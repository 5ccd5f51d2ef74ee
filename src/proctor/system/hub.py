"""The Hugging Face Hub: downloads, and its errors as one-line messages."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proctor.errors import HubUnreachable, UsageError, strip_control_codes
from proctor.system.optional import LOAD_ERRORS, import_failure

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
    def options(self) -> dict[str, Any]:
        """Keyword arguments for ``snapshot_download``."""
        options = {
            "repo_type": None if self.kind == "model" else self.kind,
            "cache_dir": self.cache,
            "local_dir": self.folder,
            "local_files_only": self.offline or None,
        }
        return {name: value for name, value in options.items() if value is not None}


MODELS = HubLocation()


def download(
    repo: str,
    revision: str | None,
    files: Sequence[str] | None = None,
    location: HubLocation = MODELS,
) -> Path:
    """Return the folder that holds ``repo``; the folder's name is the commit.

    ``files`` are patterns of the files to download.

    Raises:
        UsageError: the repository or revision does not exist, or the Hub is unreachable.
    """
    with explaining_hub_errors(repo, revision):
        from huggingface_hub import snapshot_download

        patterns = None if files is None else list(files)
        return Path(
            snapshot_download(repo, revision=revision, allow_patterns=patterns, **location.options)
        )


def revisions(repo: str, kind: str) -> list[str]:
    """Return the names of the branches and tags of ``repo``.

    Raises:
        UsageError: the repository does not exist, or the Hub is unreachable.
    """
    with explaining_hub_errors(repo, None):
        from huggingface_hub import HfApi

        refs = HfApi().list_repo_refs(repo, repo_type=kind)
        return [ref.name for ref in (*refs.branches, *refs.tags)]


def hub_api() -> Any:
    """Return the Hub's API.

    Raises:
        MissingExtra: huggingface_hub is not installed.
    """
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

    Raises:
        UsageError: the repository or revision does not exist, or the Hub is unreachable.
    """
    try:
        from huggingface_hub.errors import (
            GatedRepoError,
            HfHubHTTPError,
            LocalEntryNotFoundError,
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
    except ValueError as error:  # an invalid id or revision
        raise UsageError(f"{repo} is not a Hub id: {error}", code="hub.invalid-id") from None
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise _unreachable(repo, error, consequence) from None
    except Exception as error:
        # Errors of the HTTP library, which changes every few versions.
        if not type(error).__module__.startswith(("httpx", "httpcore", "requests")):
            raise
        raise _unreachable(repo, error, consequence) from None


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
    """Turn the Hub's permission errors into one line.

    Raises:
        UsageError: the Hub does not allow this user to do it.
    """
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
