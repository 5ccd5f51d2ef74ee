"""Where a stream gets its files from: a folder, or the Hub, one by one."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Protocol

from proctor.datasets.source import FoundDataset, find, find_local
from proctor.errors import DatasetError


class DatasetFiles(Protocol):
    """The files of a dataset, below ``root`` once they were fetched; those of meta/ always are."""

    @property
    def root(self) -> Path:
        """The dataset's folder."""

    @property
    def private(self) -> bool:
        """Whether only this stream writes to the folder: files come and go as they are needed."""

    def fetch(self, file: Path) -> int:
        """See to it that ``file``, below ``root``, is there; return its size in bytes.

        Raises:
            DatasetError: the dataset has no such file.
            UsageError: it cannot be fetched.
        """

    def drop(self, file: Path) -> None:
        """Hear that ``file`` is not needed for now."""

    def close(self) -> None:
        """Hear that nothing is needed any more."""


class LocalFiles:
    """A dataset that is here, and stays."""

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
        """Leave it: it is the user's."""

    def close(self) -> None:
        """Leave everything."""


class HubFiles(LocalFiles):
    """A dataset on the Hub, of which a temporary folder has what is needed now."""

    private = True

    def __init__(self, found: FoundDataset) -> None:
        super().__init__(found.root)
        self._found = found

    def fetch(self, file: Path) -> int:
        """Download a file."""
        self._found.fetch([file.relative_to(self.root).as_posix()])
        return super().fetch(file)

    def drop(self, file: Path) -> None:
        """Delete a file; when it is needed again, it is downloaded again."""
        file.unlink(missing_ok=True)

    def close(self) -> None:
        """Delete everything."""
        shutil.rmtree(self.root, ignore_errors=True)


def dataset_files(
    path_or_id: str | Path, revision: str | None, root: Path | None = None
) -> DatasetFiles:
    """Return the files of a dataset that is here, or that are on the Hub and come one by one.

    ``root`` is the folder of a dataset that is named by its Hub id, if it lies there. Those of the
    Hub do not go where downloads are kept: nothing of a stream is to stay.

    Raises:
        UsageError: there is no such dataset.
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
