"""The dataset page as one HTML file, with the plots and videos of some episodes embedded."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from proctor.datasets.reader import open as open_dataset
from proctor.datasets.reading.dataset import Dataset
from proctor.report.dataset.data import dataset_data, episode_data
from proctor.report.dataset.media import BROWSER_CODECS, extract_mp4, jpeg_frames, video_segment
from proctor.report.dataset.summary import CameraSummary, DatasetSummary
from proctor.report.html.document import document_html
from proctor.runs.folder import write_run_file

_LONGEST_SIDE = 320
"""Longer side in pixels of images that replace a video that is too large."""
_BATCH_SIZE = 32
"""Frames that are decoded at a time."""


@dataclass(frozen=True)
class PageLimits:
    """Limits of the HTML file."""

    most_bytes: int
    """Bytes of all images and videos; each camera of each episode gets an equal share."""
    as_images: bool = False
    """Embed single images instead of videos, for browsers that do not play them."""


def page_html(values: Mapping[str, Any]) -> str:
    """Return the page that shows ``values``: those of ``dataset_data``, and where media are."""
    styles, scripts = ("dataset/page.css",), ("dataset/edit.js",)
    return document_html("dataset/page", values, styles=styles, scripts=scripts, media=True)


def write_dataset_page(
    summary: DatasetSummary, output: Path, episodes: Sequence[int], bounds: PageLimits
) -> None:
    """Write the page with these episodes embedded."""
    # base64 stores three bytes in four characters.
    share = bounds.most_bytes * 3 // 4 // max(1, len(episodes) * len(summary.cameras))
    embedded = {}
    for episode in episodes:
        dataset = open_dataset(summary.root, episodes=[episode])
        embedded[str(episode)] = {
            **episode_data(dataset, summary),
            "media": [
                _media(dataset, camera, episode, share, as_images=bounds.as_images)
                for camera in summary.cameras
            ],
        }
    values = {**dataset_data(summary, episodes), "served": False, "kept": embedded}
    write_run_file(output, page_html(values))


def _media(
    dataset: Dataset, camera: CameraSummary, episode: int, share: int, *, as_images: bool
) -> dict[str, Any]:
    """Return a camera's video of an episode, or as many images as fit into its share."""
    if camera.codec in BROWSER_CODECS and not camera.is_depth and not as_images:
        video = extract_mp4(video_segment(dataset, episode, camera.key))
        if video is not None and len(video) <= share:
            return {"video": base64.b64encode(video).decode()}
    return {"pictures": _images(dataset, camera.key, share)}


def _images(dataset: Dataset, key: str, share: int) -> list[tuple[int, str]]:
    """Return evenly spaced frames and their JPEG files, as many as fit into ``share`` bytes."""
    if len(dataset) == 0:
        return []
    size = len(jpeg_frames(dataset, key, [0], _LONGEST_SIDE)[0])
    frames = np.unique(np.linspace(0, len(dataset) - 1, min(len(dataset), share // size)).round())
    found: list[tuple[int, str]] = []
    taken = 0
    for start in range(0, len(frames), _BATCH_SIZE):
        chosen = [int(frame) for frame in frames[start : start + _BATCH_SIZE]]
        for frame, image in zip(
            chosen, jpeg_frames(dataset, key, chosen, _LONGEST_SIDE), strict=True
        ):
            taken += len(image)
            if taken <= share:
                found.append((frame, base64.b64encode(image).decode()))
    return found
