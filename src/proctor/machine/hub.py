"""Downloads from the Hugging Face Hub, with its errors in our words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from proctor.errors import MissingExtra, UsageError

HUB_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*/[A-Za-z0-9_][A-Za-z0-9_.-]*")


def download(repo: str, revision: str | None, files: Sequence[str] | None = None) -> Path:
    """Return the folder that holds ``repo``, whose name is its commit.

    ``files`` limits what is downloaded, as patterns.

    Raises:
        UsageError: no such repository or revision, or no way to the Hub.
    """
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import (
            GatedRepoError,
            HfHubHTTPError,
            LocalEntryNotFoundError,
            RepositoryNotFoundError,
            RevisionNotFoundError,
        )
    except ImportError:
        raise MissingExtra("huggingface_hub", "hub") from None
    patterns = None if files is None else list(files)
    try:
        return Path(snapshot_download(repo, revision=revision, allow_patterns=patterns))
    except GatedRepoError:
        raise UsageError(f"{repo} is gated; ask for access on the Hub and log in") from None
    except RepositoryNotFoundError:
        raise UsageError(f"{repo} is neither a folder here nor a repository on the Hub") from None
    except RevisionNotFoundError:
        raise UsageError(f"{repo} has no revision {revision!r}") from None
    except ValueError as error:  # an id or a revision that cannot be
        raise UsageError(f"{repo} is no Hub id: {error}") from None
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UsageError(
            f"{repo} is no folder here and the Hub cannot be reached ({reason}); give a local "
            "folder, or download it first where there is a network"
        ) from None
