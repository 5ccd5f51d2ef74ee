"""Where a checkpoint is: a folder here, or a repository on the Hugging Face Hub; its JSON files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proctor.errors import UsageError
from proctor.system.files import read_regular_file
from proctor.system.hub import HUB_ID, download

FILES = [
    "config.json",
    "model*.safetensors",
    "model.safetensors.index.json",
    "policy_*",
    "adapter_*",
    "tokenizer*",
    "special_tokens_map.json",
    "action_tokenizer*",
]
"""Of a repository, those that a policy is read from; never code."""


@dataclass(frozen=True)
class CheckpointFolder:
    """A folder with a checkpoint and, if it came from the Hub, its commit."""

    folder: Path
    commit: str | None = None


def locate(path: str, revision: str | None = None) -> CheckpointFolder:
    """Return the folder of a checkpoint, downloaded first where ``path`` is a Hub id.

    Raises:
        UsageError: no such folder or repository, no config.json in it, or no way to the Hub.
    """
    here = folder_here(path, revision)
    if here is not None:
        return CheckpointFolder(here)
    downloaded = download(path, revision, FILES)
    return CheckpointFolder(_with_config(downloaded), commit=downloaded.name)


def stated_config(path: str) -> dict[str, Any]:
    """Return what a checkpoint's config.json says; of one on the Hub, nothing else is downloaded.

    Raises:
        UsageError: there is no checkpoint, or its config.json cannot be read.
    """
    folder = folder_here(path) or download(path, None, FILES[:1])
    file = folder / FILES[0]
    try:
        stated = json.loads(read_regular_file(file))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"cannot read {file}: {error}") from None
    if not isinstance(stated, dict):
        raise UsageError(f"{file} is no config of a policy")
    return stated


def folder_here(path: str, revision: str | None = None) -> Path | None:
    """Return the folder of a checkpoint on this machine; None where ``path`` is a Hub id.

    Links are followed here, once: ``checkpoints/last`` may name another folder a moment later.

    Raises:
        UsageError: no such folder, or no config.json in it, and no Hub id either.
    """
    try:
        folder = Path(path).expanduser()
        folder.exists()
    except (OSError, ValueError, RuntimeError) as error:
        raise UsageError(f"{path} cannot be the path of a checkpoint: {error}") from None
    if folder.is_dir():
        if revision is not None:
            raise UsageError(f"{path} is a folder here; a revision is for checkpoints on the Hub")
        return _with_config(folder).resolve()
    if folder.exists():
        raise UsageError(f"{path} is a file; give the folder that holds config.json")
    if not HUB_ID.fullmatch(path):
        raise UsageError(f"{path} does not exist (and is no Hub id, which reads owner/name)")
    return None


def _with_config(folder: Path) -> Path:
    if (folder / "config.json").is_file():
        return folder
    if (folder / "pretrained_model" / "config.json").is_file():
        raise UsageError(f"{folder} has no config.json; did you mean {folder}/pretrained_model?")
    last = folder / "checkpoints" / "last" / "pretrained_model"
    if (last / "config.json").is_file():
        raise UsageError(f"{folder} has no config.json; did you mean {last}?")
    raise UsageError(f"{folder} has no config.json, so it is not a checkpoint")


def read_json(file: Path) -> dict[str, Any]:
    """Return the JSON object in ``file``.

    Raises:
        UsageError: it is not there or is none.
    """
    try:
        raw = json.loads(read_regular_file(file))
    except FileNotFoundError:
        raise UsageError(f"{file.parent} has no {file.name}") from None
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file} is not JSON: {error}") from None
    if not isinstance(raw, dict):
        raise UsageError(f"{file} holds no JSON object")
    return raw
