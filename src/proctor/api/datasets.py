"""``proctor.load_dataset``: open a dataset, with the words of the flags ``--dataset.*``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proctor.api.arguments import plain, refuse_unknown
from proctor.datasets.cache_settings import CacheKind, FrameCacheSettings
from proctor.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from proctor.datasets.reading.dataset import Dataset
    from proctor.datasets.reading.windows import DeltaTimestamps

_READING = (
    *("root", "episodes", "revision", "delta_timestamps"),
    *("tolerance_s", "image_size", "cache"),
)


def load_dataset(
    path_or_id: str | Path,
    *,
    root: str | Path | None = None,
    episodes: Sequence[int] | None = None,
    revision: str | None = None,
    delta_timestamps: DeltaTimestamps | None = None,
    tolerance_s: float | None = None,
    image_size: Sequence[int] | None = None,
    cache: str | CacheKind | FrameCacheSettings = CacheKind.OFF,
    **unknown: Any,
) -> Dataset:
    """Open a dataset by its folder or Hub id; only the needed files are downloaded.

    Args:
        path_or_id: the dataset's folder, or its Hub id.
        root: local folder of a dataset that ``path_or_id`` names by its Hub id.
        episodes: episodes to read; their frames are numbered without gaps. None reads all.
        revision: branch, tag or commit on the Hub.
        delta_timestamps: seconds relative to a frame, which give a feature a time axis, such as
            ``{"action": [0.0, 0.1, 0.2]}``.
        tolerance_s: largest difference between a requested and a decoded frame, in seconds. None
            is 0.0001.
        image_size: height and width that images are resized to when they are decoded.
        cache: where decoded frames are kept: "off", "ram" or "disk".
        unknown: refused, with the nearest known argument.

    Raises:
        MissingExtra: the extra ``dataset`` is not installed.
        UsageError: there is no such dataset, episode or feature, or it cannot be read.
    """
    refuse_unknown("load_dataset", unknown, _READING)
    from proctor.datasets import reader  # imports pyarrow
    from proctor.datasets.frames.video import TOLERANCE_S

    size = None if image_size is None else plain(tuple(image_size))
    if size is not None and (len(size) != 2 or not all(isinstance(n, int) for n in size)):
        raise UsageError(
            f"image_size={image_size!r}: expected (height, width)", code="flag.invalid-value"
        )
    return reader.open(
        path_or_id,
        root=root,
        episodes=None if episodes is None else list(episodes),
        revision=revision,
        delta_timestamps=delta_timestamps,
        tolerance_s=TOLERANCE_S if tolerance_s is None else float(tolerance_s),
        image_size=None if size is None else (size[0], size[1]),
        cache=_cache_settings(cache),
    )


def _cache_settings(cache: str | CacheKind | FrameCacheSettings) -> FrameCacheSettings:
    if isinstance(cache, FrameCacheSettings):
        return cache
    kinds = {kind.value: kind for kind in CacheKind if kind is not CacheKind.DEVICE}
    kind = kinds.get(cache.value if isinstance(cache, CacheKind) else cache)
    if kind is None:
        near = did_you_mean(str(cache), kinds)
        raise UsageError(
            f"cache={cache!r}: choose from {', '.join(kinds)}{near}", code="flag.invalid-value"
        )
    return FrameCacheSettings(kind)
