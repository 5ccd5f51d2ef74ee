"""The file layout and codec of new and existing datasets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from proctor.datasets.format.info import DEFAULT_FEATURES, Info, with_axis
from proctor.datasets.frames.depth import DepthScale, DepthUnit
from proctor.datasets.frames.encoder import CODECS, Codec
from proctor.errors import DatasetError


@dataclass(frozen=True)
class FileLayout:
    """Size limits of a dataset's files and folders; the defaults are LeRobot's."""

    chunks_size: int = 1000
    data_files_size_in_mb: int = 100
    video_files_size_in_mb: int = 200
    robot_type: str | None = None


def new_info(
    fps: int, features: Mapping[str, Mapping[str, Any]], codec: Codec, layout: FileLayout
) -> Info:
    """Return the info of a dataset without episodes.

    The default features are added after ``features``.
    """
    for key in features:
        if key in DEFAULT_FEATURES:
            raise DatasetError(
                f"{key} is computed by the dataset: leave it out of features",
                code="dataset.default-feature",
            )
    entries = {key: with_axis(entry) for key, entry in features.items()}
    drawn = Info(fps=fps, features=entries)
    for key in drawn.video_keys:
        entry, (height, width, _) = entries[key], drawn.shape(key)
        if drawn.is_depth(key):
            unit = DepthUnit.of(key, entry)
            entry["info"] = DepthScale.of(entry).info_block(height, width, fps, unit)
        else:
            entry["info"] = codec.info_block(height, width, fps)
    return Info(
        fps=fps,
        features=entries | {key: dict(entry) for key, entry in DEFAULT_FEATURES.items()},
        chunks_size=layout.chunks_size,
        data_files_size_in_mb=layout.data_files_size_in_mb,
        video_files_size_in_mb=layout.video_files_size_in_mb,
        robot_type=layout.robot_type,
    )


def recorded_codec(info: Info) -> Codec:
    """Return the codec of a dataset's colour videos, as far as meta/info.json states it."""
    for key in info.video_keys:
        if info.is_depth(key):
            continue
        said = info.entry(key).get("info") or {}
        name = str(said.get("video.codec", "av1"))
        known = CODECS.get(name, replace(Codec(), name=name, preset=None))
        return replace(
            known,
            pix_fmt=str(said.get("video.pix_fmt") or known.pix_fmt),
            g=said.get("video.g", known.g),
            crf=said.get("video.crf", known.crf),
            preset=said.get("video.preset", known.preset),
            fast_decode=int(said.get("video.fast_decode") or 0),
            extra_options={
                str(name): str(value)
                for name, value in (said.get("video.extra_options") or {}).items()
            },
        )
    return Codec()
