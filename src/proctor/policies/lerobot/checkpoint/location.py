"""Find a checkpoint: a local folder or a repository on the Hugging Face Hub; read its JSON."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proctor.errors import UsageError
from proctor.system.files import read_regular_file
from proctor.system.hub.repositories import HUB_ID, download
from proctor.trained_starts import TRAINED_STARTS_FILE

FILES = [
    "config.json",
    "model*.safetensors",
    "model.safetensors.index.json",
    "policy_*",
    "adapter_*",
    "tokenizer*",
    "special_tokens_map.json",
    "action_tokenizer*",
    "processor_config.json",
    "statistics.json",
    "embodiment_id.json",
    "experiment_cfg/metadata.json",
    TRAINED_STARTS_FILE,
]
"""Files of a repository that are downloaded; never code."""


@dataclass(frozen=True)
class CheckpointFolder:
    """A folder with a checkpoint and, if it came from the Hub, its commit."""

    folder: Path
    commit: str | None = None


def locate(path: str, revision: str | None = None) -> CheckpointFolder:
    """Return the folder of a checkpoint, downloaded first where ``path`` is a Hub id."""
    here = local_folder(path, revision)
    if here is not None:
        return CheckpointFolder(here)
    downloaded = download(path, revision, FILES)
    return CheckpointFolder(_with_config(downloaded), commit=downloaded.name)


def read_config_json(path: str) -> dict[str, Any]:
    """Return a checkpoint's config.json; from the Hub, only this file is downloaded."""
    folder = local_folder(path) or download(path, None, FILES[:1])
    return read_json(folder / FILES[0])


def local_folder(path: str, revision: str | None = None) -> Path | None:
    """Return the folder of a local checkpoint; None if ``path`` is a Hub id.

    Symbolic links are resolved here, once: ``checkpoints/last`` may change later.
    """
    try:
        folder = Path(path).expanduser()
        folder.exists()
    except (OSError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"{path} is not a valid path of a checkpoint: {error}", code="checkpoint.not-found"
        ) from None
    if folder.is_dir():
        if revision is not None:
            raise UsageError(
                f"{path} is a local folder; --policy.revision is for checkpoints on the Hub",
                code="checkpoint.revision-of-folder",
            )
        return _with_config(folder).resolve()
    if folder.exists():
        raise UsageError(
            f"{path} is a file; give the folder that holds config.json", code="checkpoint.not-found"
        )
    if not HUB_ID.fullmatch(path):
        raise UsageError(
            f"{path} does not exist (and is not a Hub id, owner/name)",
            code="checkpoint.not-found",
        )
    return None


def pinned_path(path: str, revision: str | None = None) -> str:
    """Return a checkpoint's path with links such as ``checkpoints/last`` resolved, absolute then.

    ``checkpoints/last`` becomes the folder of the step that it means now. A path without links and
    a Hub id are returned as they are.
    """
    folder = local_folder(path, revision)
    if folder is None or folder == Path(os.path.abspath(Path(path).expanduser())):  # noqa: PTH100  .resolve() follows links
        return path
    return str(folder)


def _with_config(folder: Path) -> Path:
    if (folder / "config.json").is_file():
        return folder
    if (folder / "pretrained_model" / "config.json").is_file():
        raise UsageError(
            f"{folder} has no config.json; did you mean {folder}/pretrained_model?",
            code="checkpoint.not-found",
        )
    last = folder / "checkpoints" / "last" / "pretrained_model"
    if (last / "config.json").is_file():
        raise UsageError(
            f"{folder} has no config.json; did you mean {last}?", code="checkpoint.not-found"
        )
    raise UsageError(
        f"{folder} has no config.json, so it is not a checkpoint", code="checkpoint.not-found"
    )


def cannot_read(file: Path, error: OSError, code: str = "checkpoint.unreadable") -> UsageError:
    """Return the error for a file or folder that the system cannot read."""
    return UsageError(f"cannot read {file}: {error.strerror}", code=code)


def read_json(file: Path) -> dict[str, Any]:
    """Return the JSON object in ``file``."""
    try:
        raw = json.loads(read_regular_file(file))
    except FileNotFoundError:
        raise UsageError(
            f"{file.parent} has no {file.name}", code="checkpoint.missing-file"
        ) from None
    except OSError as error:
        raise cannot_read(file, error) from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file} is not JSON: {error}", code="checkpoint.unreadable") from None
    if not isinstance(raw, dict):
        raise UsageError(f"{file} holds no JSON object", code="checkpoint.unreadable")
    return raw
