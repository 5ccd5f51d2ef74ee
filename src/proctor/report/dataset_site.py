"""Serves a dataset to a browser: its page, the values of an episode, videos and images."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from proctor.datasets.format.info import video_file
from proctor.datasets.reader import open as open_dataset
from proctor.datasets.reading.dataset import Dataset
from proctor.errors import DatasetError
from proctor.report.dataset_data import dataset_data, episode_data
from proctor.report.dataset_media import BROWSER_CODECS, jpeg_frames
from proctor.report.dataset_page import page_html
from proctor.report.dataset_summary import DatasetSummary
from proctor.report.site import Answer, Page, Video

_NUMBER = r"([0-9]{1,9})"
_CACHED_EPISODES = 4
"""Episodes that stay open in memory."""


class DatasetSite:
    """Serves one dataset. URLs contain numbers only, so that they cannot name a file."""

    def __init__(self, summary: DatasetSummary) -> None:
        self.summary = summary
        self.root = summary.root.resolve()
        self._dataset: Callable[[int], Dataset] = lru_cache(_CACHED_EPISODES)(self._opened)
        self._known: list[tuple[re.Pattern[str], Callable[..., Answer]]] = [
            (re.compile("/"), self._page),
            (re.compile(f"/episode/{_NUMBER}"), self._episode),
            (re.compile(f"/video/{_NUMBER}/{_NUMBER}/{_NUMBER}.mp4"), self._video),
            (re.compile(f"/picture/{_NUMBER}/{_NUMBER}/{_NUMBER}.jpg"), self._image),
        ]

    def answer(self, path: str, target: Path, query: Mapping[str, Sequence[str]]) -> Answer:
        """Return the page, the values of an episode, a video or an image."""
        for pattern, make in self._known:
            if found := pattern.fullmatch(path):
                return make(*map(int, found.groups()))
        return None

    def _opened(self, episode: int) -> Dataset:
        return open_dataset(self.summary.root, episodes=[episode])

    def _page(self) -> Answer:
        return Page(page_html({**dataset_data(self.summary), "served": True}))

    def _episode(self, episode: int) -> Answer:
        if episode >= len(self.summary.episodes):
            return None
        row = self.summary.episodes[episode]
        values: dict[str, Any] = episode_data(self._dataset(episode), self.summary)
        values["media"] = []
        for number, camera in enumerate(self.summary.cameras):
            span = row.videos.get(camera.key)
            played = span is not None and camera.codec in BROWSER_CODECS and not camera.is_depth
            values["media"].append(
                {"url": f"video/{number}/{span.chunk}/{span.file}.mp4", "from_s": span.from_s}
                if span is not None and played
                else {}
            )
        return Page(json.dumps(values, allow_nan=False), "application/json")

    def _video(self, camera: int, chunk: int, file: int) -> Answer:
        """Return a whole video file; the page plays the segment of an episode."""
        if camera >= len(self.summary.cameras):
            return None
        key = self.summary.cameras[camera].key
        spans = self.summary.episodes.videos.get(key)
        if spans is None or not ((spans.chunk == chunk) & (spans.file == file)).any():
            return None
        path = video_file(self.summary.root, self.summary.info, key, chunk, file)
        self._check_inside(path)
        return Video(path) if path.is_file() else None

    def _check_inside(self, path: Path) -> None:
        """Refuse a symlink out of the dataset, except into the blobs of a Hub download.

        Raises:
            DatasetError: the file is outside.
        """
        real = Path(os.path.realpath(path))
        blobs = self.root.parent.parent / "blobs"
        if not real.is_relative_to(self.root) and real.parent != blobs:
            raise DatasetError(
                f"{path.name} is a link that leads out of the dataset",
                code="dataset.symlink-outside",
            )

    def _image(self, camera: int, episode: int, frame: int) -> Answer:
        if camera >= len(self.summary.cameras) or episode >= len(self.summary.episodes):
            return None
        if frame >= self.summary.episodes[episode].length:
            return None
        key = self.summary.cameras[camera].key
        return Page(jpeg_frames(self._dataset(episode), key, [frame])[0], "image/jpeg")
