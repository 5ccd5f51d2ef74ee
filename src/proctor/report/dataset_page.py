"""The page of a dataset as one file: some episodes, their numbers, and their pictures in it."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from proctor.datasets.reader import open as open_dataset
from proctor.datasets.reading.dataset import Dataset
from proctor.report.dataset_data import dataset_data, episode_data
from proctor.report.dataset_facts import CameraFacts, DatasetFacts
from proctor.report.dataset_media import PLAYABLE, cut_out, part_of, pictures
from proctor.report.document import document_html
from proctor.runs.folder import write_run_file

_LONGEST_SIDE = 320
"""Of pictures that stand for a video that is too large."""
_AT_ONCE = 32


@dataclass(frozen=True)
class PageLimits:
    """What may go into the file."""

    most_bytes: int
    """All pictures and videos together; each camera of each episode has the same share."""
    as_pictures: bool = False
    """Single pictures instead of videos, for browsers that do not play them."""


def page_html(values: Mapping[str, Any]) -> str:
    """Return the page that shows ``values``, those of ``dataset_data`` and a few more."""
    return document_html("dataset", values, styles=("page.css", "dataset.css"), media=True)


def write_dataset_page(
    facts: DatasetFacts, output: Path, episodes: Sequence[int], bounds: PageLimits
) -> None:
    """Write the page with these episodes and all it shows of them.

    Raises:
        DatasetError: one of them is not there or cannot be read.
        RunFolderError: the page cannot be written.
    """
    # Of four bytes in the file, base64 makes three.
    share = bounds.most_bytes * 3 // 4 // max(1, len(episodes) * len(facts.cameras))
    kept = {}
    for episode in episodes:
        dataset = open_dataset(facts.root, episodes=[episode])
        kept[str(episode)] = {
            **episode_data(dataset, facts),
            "media": [
                _media(dataset, camera, episode, share, as_pictures=bounds.as_pictures)
                for camera in facts.cameras
            ],
        }
    values = {**dataset_data(facts, episodes), "served": False, "kept": kept}
    write_run_file(output, page_html(values))


def _media(
    dataset: Dataset, camera: CameraFacts, episode: int, share: int, *, as_pictures: bool
) -> dict[str, Any]:
    """Return a camera's video of an episode, or as many of its pictures as its share holds."""
    if camera.codec in PLAYABLE and not camera.is_depth and not as_pictures:
        video = cut_out(part_of(dataset, episode, camera.key))
        if video is not None and len(video) <= share:
            return {"video": base64.b64encode(video).decode()}
    return {"pictures": _pictures(dataset, camera.key, share)}


def _pictures(dataset: Dataset, key: str, share: int) -> list[tuple[int, str]]:
    """Return frames and their JPEG files, evenly spaced, as many as ``share`` bytes hold."""
    if len(dataset) == 0:
        return []
    size = len(pictures(dataset, key, [0], _LONGEST_SIDE)[0])
    frames = np.unique(np.linspace(0, len(dataset) - 1, min(len(dataset), share // size)).round())
    found: list[tuple[int, str]] = []
    taken = 0
    for start in range(0, len(frames), _AT_ONCE):
        chosen = [int(frame) for frame in frames[start : start + _AT_ONCE]]
        for frame, picture in zip(
            chosen, pictures(dataset, key, chosen, _LONGEST_SIDE), strict=True
        ):
            taken += len(picture)
            if taken <= share:
                found.append((frame, base64.b64encode(picture).decode()))
    return found
