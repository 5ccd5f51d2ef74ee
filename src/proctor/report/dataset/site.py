"""Serves a dataset to a browser: its page, the values of an episode, videos, images and edits."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from proctor.datasets.format.info import video_file
from proctor.datasets.reader import open as open_dataset
from proctor.datasets.reading.dataset import Dataset
from proctor.errors import DatasetError
from proctor.report.dataset.data import dataset_data, episode_data
from proctor.report.dataset.edits import DatasetEditor, dataset_version, parse_edit
from proctor.report.dataset.media import BROWSER_CODECS, jpeg_frames
from proctor.report.dataset.page import page_html
from proctor.report.dataset.summary import DatasetSummary, read_summary
from proctor.report.server.site import Answer, Page, Video
from proctor.system.links import is_inside

_NUMBER = r"([0-9]{1,9})"
_CACHED_EPISODES = 4
"""Episodes that stay open in memory."""


class _LoadedDataset:
    """A version of the dataset: its metadata, and episodes that stay open in memory."""

    def __init__(self, summary: DatasetSummary, version: str) -> None:
        self.summary, self.version = summary, version
        self.open: Callable[[int], Dataset] = lru_cache(_CACHED_EPISODES)(self._open)

    def _open(self, episode: int) -> Dataset:
        return open_dataset(self.summary.root, episodes=[episode])


class DatasetSite:
    """Serves one dataset. URLs contain numbers only, so that they cannot name a file."""

    def __init__(self, root: Path, *, editable: bool = False) -> None:
        """Read the dataset in ``root``.

        Args:
            root: the folder of the dataset.
            editable: the page can edit the dataset; the server is on a loopback address.
        """
        self.root = root.resolve()
        self._shown_root = root
        self._editable = editable
        self.editor = DatasetEditor(self.root)
        self._loaded = self._load()
        self._known: list[tuple[re.Pattern[str], Callable[..., Answer]]] = [
            (re.compile(f"/episode/{_NUMBER}"), self._episode),
            (re.compile(f"/video/{_NUMBER}/{_NUMBER}/{_NUMBER}.mp4"), self._video),
            (re.compile(f"/picture/{_NUMBER}/{_NUMBER}/{_NUMBER}.jpg"), self._image),
        ]

    def answer(self, path: str, target: Path, query: Mapping[str, Sequence[str]]) -> Answer:
        """Return the page, the values of an episode, a video or an image, or the latest edit."""
        if path == "/":
            return self._page()
        if path == "/edit":
            return Page(self.editor.status.to_json(), "application/json")
        for pattern, make in self._known:
            if found := pattern.fullmatch(path):
                return make(self._version(query), *map(int, found.groups()))
        return None

    def post(self, path: str, target: Path, body: bytes) -> Page | None:
        """Start an edit of the marked episodes: POST /edit."""
        if path != "/edit" or not self._editable:
            return None
        return Page(self.editor.start(parse_edit(body)).to_json(), "application/json")

    def _load(self) -> _LoadedDataset:
        version = dataset_version(self.root)  # first: a later change must not go unnoticed
        return _LoadedDataset(read_summary(self._shown_root), version)

    def _version(self, query: Mapping[str, Sequence[str]]) -> _LoadedDataset:
        """Return the dataset that a page shows."""
        loaded = self._loaded
        if query.get("v", [loaded.version])[0] != loaded.version:
            raise DatasetError(
                "the dataset has changed since this page was loaded; reload the page",
                code="dataset.changed",
            )
        return loaded

    def _page(self) -> Answer:
        if self._loaded.version != dataset_version(self.root):
            self._loaded = self._load()
        loaded = self._loaded
        values = {
            **dataset_data(loaded.summary),
            "served": True,
            "editable": self._editable,
            "version": loaded.version,
            "edit": json.loads(self.editor.status.to_json()),
        }
        return Page(page_html(values))

    def _episode(self, loaded: _LoadedDataset, episode: int) -> Answer:
        summary = loaded.summary
        if episode >= len(summary.episodes):
            return None
        row = summary.episodes[episode]
        values: dict[str, Any] = episode_data(loaded.open(episode), summary)
        values["media"] = []
        for number, camera in enumerate(summary.cameras):
            span = row.videos.get(camera.key)
            played = span is not None and camera.codec in BROWSER_CODECS and not camera.is_depth
            values["media"].append(
                {"url": f"video/{number}/{span.chunk}/{span.file}.mp4", "from_s": span.from_s}
                if span is not None and played
                else {}
            )
        return Page(json.dumps(values, allow_nan=False), "application/json")

    def _video(self, loaded: _LoadedDataset, camera: int, chunk: int, file: int) -> Answer:
        """Return a whole video file; the page plays the segment of an episode."""
        summary = loaded.summary
        if camera >= len(summary.cameras):
            return None
        key = summary.cameras[camera].key
        spans = summary.episodes.videos.get(key)
        if spans is None or not ((spans.chunk == chunk) & (spans.file == file)).any():
            return None
        path = video_file(summary.root, summary.info, key, chunk, file)
        self._check_inside(path)
        return Video(path) if path.is_file() else None

    def _check_inside(self, path: Path) -> None:
        """Refuse a symlink out of the dataset, except into the blobs of a Hub download."""
        if not is_inside(path, self.root):
            raise DatasetError(
                f"{path.name} is a link that leads out of the dataset",
                code="dataset.symlink-outside",
            )

    def _image(self, loaded: _LoadedDataset, camera: int, episode: int, frame: int) -> Answer:
        summary = loaded.summary
        if camera >= len(summary.cameras) or episode >= len(summary.episodes):
            return None
        if frame >= summary.episodes[episode].length:
            return None
        key = summary.cameras[camera].key
        return Page(jpeg_frames(loaded.open(episode), key, [frame])[0], "image/jpeg")
