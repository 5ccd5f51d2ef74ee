"""The files of a stream: in a local folder, or downloaded one by one from the Hub."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Protocol

from proctor.datasets.source import FoundDataset, find, find_local
from proctor.errors import DatasetError


class DatasetFiles(Protocol):
    """The files of a dataset below ``root``; the metadata are always there."""

    @property
    def root(self) -> Path:
        """The dataset's folder."""

    @property
    def private(self) -> bool:
        """Whether the folder belongs to this stream, which downloads and deletes its files."""

    def fetch(self, file: Path) -> int:
        """Make ``file`` below ``root`` available; return its size in bytes."""

    def drop(self, file: Path) -> None:
        """Note that ``file`` is not needed for now."""

    def close(self) -> None:
        """Note that no file is needed any more."""


class LocalFiles:
    """A local dataset, whose files stay."""

    private = False

    def __init__(self, root: Path) -> None:
        self.root = root

    def fetch(self, file: Path) -> int:
        """Return the size of a file."""
        try:
            return file.stat().st_size
        except OSError as error:
            raise DatasetError(
                f"{file}: {error.strerror}; the dataset is not complete",
                code="dataset.missing-file",
            ) from None

    def drop(self, file: Path) -> None:
        """Keep the file."""

    def close(self) -> None:
        """Keep all files."""


class HubFiles(LocalFiles):
    """A dataset on the Hub; a temporary folder holds the files that are needed now."""

    private = True

    def __init__(self, found: FoundDataset) -> None:
        super().__init__(found.root)
        self._found = found

    def fetch(self, file: Path) -> int:
        """Download a file."""
        self._found.fetch([file.relative_to(self.root).as_posix()])
        return super().fetch(file)

    def drop(self, file: Path) -> None:
        """Delete a file; it is downloaded again when needed."""
        file.unlink(missing_ok=True)

    def close(self) -> None:
        """Delete all files."""
        shutil.rmtree(self.root, ignore_errors=True)


def dataset_files(
    path_or_id: str | Path, revision: str | None, root: Path | None = None
) -> DatasetFiles:
    """Return the files of a local dataset, or of one on the Hub.

    ``root`` is the local folder of a dataset that is named by its Hub id, if there is one. A stream
    from the Hub does not fill the download cache.
    """
    here = find_local(path_or_id, root, revision)
    if here is not None:
        return LocalFiles(here.root)
    scratch = Path(tempfile.mkdtemp(prefix="proctor-stream-"))
    try:
        return HubFiles(find(path_or_id, scratch, revision))
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
