"""The Hugging Face Hub: downloads, and its errors and refusals in our words."""

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
    """What kind of repository is meant, and where what is downloaded goes."""

    kind: str = "model"
    cache: Path | None = None
    """The folder of all downloads; None: Hugging Face's own."""
    folder: Path | None = None
    """The folder of this one, without links and commits in it; None: below ``cache``."""
    offline: bool = False
    """Only what was downloaded before."""

    @property
    def options(self) -> dict[str, Any]:
        """What ``snapshot_download`` is to be told of it."""
        said = {
            "repo_type": None if self.kind == "model" else self.kind,
            "cache_dir": self.cache,
            "local_dir": self.folder,
            "local_files_only": self.offline or None,
        }
        return {name: value for name, value in said.items() if value is not None}


MODELS = HubLocation()


def download(
    repo: str, revision: str | None, files: Sequence[str] | None = None, place: HubLocation = MODELS
) -> Path:
    """Return the folder that holds ``repo``, whose name is its commit.

    ``files`` limits what is downloaded, as patterns.

    Raises:
        UsageError: no such repository or revision, or no way to the Hub.
    """
    with explaining_hub_errors(repo, revision):
        from huggingface_hub import snapshot_download

        patterns = None if files is None else list(files)
        return Path(
            snapshot_download(repo, revision=revision, allow_patterns=patterns, **place.options)
        )


def revisions(repo: str, kind: str) -> list[str]:
    """Return the names of the branches and tags of ``repo``.

    Raises:
        UsageError: no such repository, or no way to the Hub.
    """
    with explaining_hub_errors(repo, None):
        from huggingface_hub import HfApi

        refs = HfApi().list_repo_refs(repo, repo_type=kind)
        return [ref.name for ref in (*refs.branches, *refs.tags)]


def hub_api() -> Any:
    """Return the Hub.

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
    repo: str, revision: str | None, lost: str | None = None
) -> Iterator[None]:
    """Turn the errors of Hugging Face's library into one line each.

    ``lost`` says what a command that is about the Hub leaves undone where there is no way to it;
    others are told that a folder does as well.

    Raises:
        UsageError: no such repository or revision, or no way to the Hub.
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
        raise UsageError(f"{repo} is gated; ask for access on the Hub and log in") from None
    except RepositoryNotFoundError:
        raise UsageError(f"{repo} is neither a folder here nor a repository on the Hub") from None
    except RevisionNotFoundError:
        raise UsageError(f"{repo} has no revision {revision!r}") from None
    except ValueError as error:  # an id or a revision that cannot be
        raise UsageError(f"{repo} is no Hub id: {error}") from None
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise _unreachable(repo, error, lost) from None
    except Exception as error:
        # Of the library that speaks HTTP, which is another one every few versions.
        if not type(error).__module__.startswith(("httpx", "httpcore", "requests")):
            raise
        raise _unreachable(repo, error, lost) from None


def _unreachable(repo: str, error: Exception, lost: str | None) -> HubUnreachable:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if lost is not None:
        return HubUnreachable(f"{repo}: the Hub cannot be reached ({reason}); {lost}")
    return HubUnreachable(
        f"{repo} is no folder here and the Hub cannot be reached ({reason}); give a local "
        "folder, or download it first where there is a network"
    )


@contextlib.contextmanager
def explaining_refusals(repo: str) -> Iterator[None]:
    """Say in one line what the Hub does not let this user do.

    Raises:
        UsageError: it does not.
    """
    from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

    try:
        yield
    except RepositoryNotFoundError:
        raise UsageError(f"{repo} cannot be made or is not yours: log in (hf auth login)") from None
    except HfHubHTTPError as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise UsageError(f"the Hub refuses {repo}: {strip_control_codes(reason, 300)}") from None
