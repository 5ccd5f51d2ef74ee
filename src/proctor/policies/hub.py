"""Where a checkpoint is: a folder here, or a repository on the Hugging Face Hub."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from proctor.errors import MissingExtra, UsageError

HUB_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*/[A-Za-z0-9_][A-Za-z0-9_.-]*")
FILES = ["config.json", "model.safetensors", "policy_*"]


@dataclass(frozen=True)
class Located:
    """A folder with a checkpoint and, if it came from the Hub, its commit."""

    folder: Path
    commit: str | None = None


def locate(path: str, revision: str | None = None) -> Located:
    """Return the folder of a checkpoint, downloaded first where ``path`` is a Hub id.

    Raises:
        UsageError: no such folder or repository, no config.json in it, or no way to the Hub.
    """
    try:
        folder = Path(path).expanduser()
        folder.exists()
    except (OSError, ValueError, RuntimeError) as error:
        raise UsageError(f"{path} cannot be the path of a checkpoint: {error}") from None
    if folder.is_dir():
        if revision is not None:
            raise UsageError(f"{path} is a folder here; a revision is for checkpoints on the Hub")
        return Located(_with_config(folder))
    if folder.exists():
        raise UsageError(f"{path} is a file; give the folder that holds config.json")
    if not HUB_ID.fullmatch(path):
        raise UsageError(f"{path} does not exist (and is no Hub id, which reads owner/name)")
    return _download(path, revision)


def _with_config(folder: Path) -> Path:
    if (folder / "config.json").is_file():
        return folder
    if (folder / "pretrained_model" / "config.json").is_file():
        raise UsageError(f"{folder} has no config.json; did you mean {folder}/pretrained_model?")
    last = folder / "checkpoints" / "last" / "pretrained_model"
    if (last / "config.json").is_file():
        raise UsageError(f"{folder} has no config.json; did you mean {last}?")
    raise UsageError(f"{folder} has no config.json, so it is not a checkpoint")


def _download(repo: str, revision: str | None) -> Located:
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
        raise MissingExtra("huggingface_hub", "torch") from None
    try:
        folder = Path(snapshot_download(repo, revision=revision, allow_patterns=FILES))
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
    return Located(_with_config(folder), commit=folder.name)
