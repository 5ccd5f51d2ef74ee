"""The edit operations; each returns the edit plan of its result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from proctor.datasets.edit.edit_plan import EditPlan, KeptEpisode, SourceDataset, result_info
from proctor.datasets.format.info import DEFAULT_FEATURES, Info
from proctor.datasets.format.tasks import SUBTASK_INDEX, SUBTASKS_FILE, read_subtasks
from proctor.datasets.frames.depth import DepthScale, DepthUnit
from proctor.datasets.frames.encoder import Codec
from proctor.errors import UsageError, did_you_mean

_OF_THE_ENCODER = ("info", "video_info", "fps")
"""Entries of a feature that may differ between merged datasets."""


def delete(source: SourceDataset, episodes: Iterable[int]) -> EditPlan:
    """Delete ``episodes``."""
    gone = set(episodes)
    _check_episodes(source, gone)
    kept = [row for row in source.rows if row.index not in gone]
    if not kept:
        raise UsageError(
            f"these are all {len(source.rows)} episodes of {source.root}: none would remain",
            code="dataset.no-episodes",
        )
    return EditPlan(result_info(source.info), tuple(KeptEpisode(source, row) for row in kept))


def select(source: SourceDataset, episodes: Sequence[int]) -> EditPlan:
    """Keep ``episodes`` only, in this order."""
    _check_episodes(source, episodes)
    kept = tuple(KeptEpisode(source, source.rows[episode]) for episode in episodes)
    return EditPlan(result_info(source.info), kept)


def split(
    source: SourceDataset, splits: Mapping[str, float | Sequence[int]]
) -> dict[str, EditPlan]:
    """Split a dataset: per name, a fraction of the episodes or a list of episodes.

    Fractions are consecutive in the given order; the last one gets the remainder of rounding.
    """
    chosen = _by_share(source, splits) if _are_shares(splits) else splits
    owners: dict[int, str] = {}
    recipes = {}
    for name, episodes in chosen.items():
        assert not isinstance(episodes, float)
        if not episodes:
            raise UsageError(
                f"split {name!r} has no episodes ({len(source.rows)} to split)",
                code="dataset.invalid-split",
            )
        for episode in episodes:
            if owners.setdefault(episode, name) != name:
                raise UsageError(
                    f"episode {episode} is in two splits: {owners[episode]}, {name}",
                    code="dataset.invalid-split",
                )
        recipes[name] = select(source, list(dict.fromkeys(episodes)))
    return recipes


def _are_shares(splits: Mapping[str, float | Sequence[int]]) -> bool:
    if not splits:
        raise UsageError(
            "--splits is empty; write it like {train: 0.8, val: 0.2}", code="dataset.invalid-split"
        )
    shares = [isinstance(share, int | float) for share in splits.values()]
    if any(shares) and not all(shares):
        raise UsageError(
            "splits must be all fractions (0.8) or all lists of episodes ([0, 1])",
            code="dataset.invalid-split",
        )
    return all(shares)


def _by_share(
    source: SourceDataset, splits: Mapping[str, float | Sequence[int]]
) -> dict[str, list[int]]:
    shares = {
        name: float(share) for name, share in splits.items() if isinstance(share, int | float)
    }
    total = sum(shares.values())
    if not all(share > 0 for share in shares.values()) or total > 1 + 1e-6:
        raise UsageError(
            f"fractions must be above 0 and sum to at most 1, got {total:g}",
            code="dataset.invalid-split",
        )
    n, start = len(source.rows), 0
    chosen: dict[str, list[int]] = {}
    for place, (name, share) in enumerate(shares.items()):
        last = place == len(shares) - 1 and total > 1 - 1e-6
        stop = n if last else min(n, start + int(n * share))
        chosen[name] = list(range(start, stop))
        start = stop
    return chosen


def merge(sources: Sequence[SourceDataset]) -> EditPlan:
    """Merge datasets: all their episodes, in the order of ``sources``."""
    if len(sources) < 2:
        raise UsageError("merge needs at least two datasets", code="dataset.too-few-sources")
    first = sources[0]
    for other in sources[1:]:
        _check_alike(first, other)
    kept = tuple(KeptEpisode(source, row) for source in sources for row in source.rows)
    if not kept:
        raise UsageError("the datasets to merge have no episodes", code="dataset.no-episodes")
    return EditPlan(result_info(first.info), kept)


def _check_alike(one: SourceDataset, other: SourceDataset) -> None:
    """Refuse datasets that cannot be merged."""
    pair = f"{one.root} and {other.root}"
    for name in ("fps", "robot_type"):
        here, there = getattr(one.info, name), getattr(other.info, name)
        if here != there:
            raise UsageError(
                f"{pair} differ in {name}: {here} and {there}", code="dataset.sources-differ"
            )
    for key in dict.fromkeys([*one.info.features, *other.info.features]):
        for root, info in ((one.root, one.info), (other.root, other.info)):
            if key not in info.features:
                raise UsageError(
                    f"{pair} differ in features: {root} has no {key}", code="dataset.sources-differ"
                )
        here, there = (_told(source.info.features[key]) for source in (one, other))
        for name in dict.fromkeys([*here, *there]):
            if here.get(name) != there.get(name):
                raise UsageError(
                    f"{pair} differ in {name} of {key}: {here.get(name)} and {there.get(name)}",
                    code="dataset.sources-differ",
                )
    for key in one.info.cameras:
        shown = [_what_pixels_are(source.info, key) for source in (one, other)]
        if shown[0] != shown[1]:
            raise UsageError(
                f"{pair} differ in the pixels of {key}: {shown[0]} and {shown[1]}",
                code="dataset.sources-differ",
            )
    if read_subtasks(one.root, one.info) != read_subtasks(other.root, other.info):
        raise UsageError(
            f"{pair} differ in {SUBTASKS_FILE}: remove {SUBTASK_INDEX} from both (proctor data "
            "remove-feature)",
            code="dataset.sources-differ",
        )


def _told(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if name not in _OF_THE_ENCODER}


def _what_pixels_are(info: Info, key: str) -> str:
    """Describe the meaning of a camera's pixel values; only equal ones can be merged."""
    if not info.is_depth(key):
        return "colours"
    entry = info.entry(key)
    scale, unit = DepthScale.of(entry), DepthUnit.of(key, entry)
    curve = f"log with shift {scale.shift}" if scale.logarithmic else "linear"
    return f"{scale.nearest} to {scale.furthest} m ({curve}, in {unit.value})"


def rename_feature(source: SourceDataset, old: str, new: str) -> EditPlan:
    """Rename feature ``old`` to ``new``."""
    _check_own_feature(source, old, "renamed")
    if new in source.info.features:
        raise UsageError(
            f"{source.root} has a feature {new!r} already", code="dataset.feature-exists"
        )
    if not new or "/" in new or new in (".", ".."):
        raise UsageError(
            f"{new!r} is not a valid feature name: it must be a folder name, without /",
            code="dataset.invalid-name",
        )
    features = {new if key == old else key: entry for key, entry in source.info.features.items()}
    return replace(_all_of(source, features), called={new: old})


def remove_features(source: SourceDataset, keys: Sequence[str]) -> EditPlan:
    """Remove the features ``keys``."""
    for key in keys:
        _check_own_feature(source, key, "removed")
    features = {key: e for key, e in source.info.features.items() if key not in keys}
    return _all_of(source, features)


def set_tasks(source: SourceDataset, tasks: Mapping[int, str]) -> EditPlan:
    """Set the task of all frames of some episodes: episode -> task."""
    _check_episodes(source, tasks)
    if any(not task.strip() for task in tasks.values()):
        raise UsageError(
            "a task cannot be empty: it is the policy's instruction", code="dataset.empty-task"
        )
    kept = tuple(KeptEpisode(source, row, tasks.get(row.index)) for row in source.rows)
    return replace(_all_of(source, source.info.features), kept=kept)


def to_video(
    source: SourceDataset, codec: Codec, episodes: Sequence[int] | None = None
) -> EditPlan:
    """Encode images that are stored in data files as videos, for all or some episodes."""
    if not source.info.image_keys:
        raise UsageError(
            f"{source.root} has no images in its data files: its cameras are videos already",
            code="dataset.no-images",
        )
    edit_plan = _encoded(source, source.info.image_keys, codec)
    return edit_plan if episodes is None else replace(edit_plan, kept=select(source, episodes).kept)


def reencode(source: SourceDataset, keys: Sequence[str], codec: Codec) -> EditPlan:
    """Encode the videos of ``keys`` again; without keys, all except depth videos."""
    chosen = keys or [key for key in source.info.video_keys if not source.info.is_depth(key)]
    if not chosen:
        raise UsageError(f"{source.root} has no videos to encode again", code="dataset.no-videos")
    for key in chosen:
        if key not in source.info.video_keys:
            known = source.info.video_keys
            hint = did_you_mean(key, known) or f" (it has {', '.join(known) or 'none'})"
            raise UsageError(
                f"{source.root} has no video {key!r}{hint}", code="dataset.unknown-feature"
            )
        if source.info.is_depth(key):
            raise UsageError(
                f"{key} is a depth video, which encoding again would damage",
                code="dataset.depth-not-copied",
            )
    return _encoded(source, chosen, codec)


def _encoded(source: SourceDataset, keys: Sequence[str], codec: Codec) -> EditPlan:
    features = dict(source.info.features)
    for key in keys:
        height, width, channels = source.info.shape(key)
        if channels != 3:
            raise UsageError(
                f"{key} has {channels} channels; videos need three",
                code="video.unsupported-image",
            )
        features[key] = {
            "dtype": "video",
            "shape": [height, width, channels],
            "names": ["height", "width", "channels"],
            "info": codec.info_block(height, width, source.info.fps),
        }
    return replace(_all_of(source, features), codecs=dict.fromkeys(keys, codec))


def recompute_statistics(source: SourceDataset, *, pictures: bool) -> EditPlan:
    """Compute the statistics again; those of cameras only with ``pictures``."""
    info = source.info
    left = {key for key in info.cameras if not pictures or info.is_depth(key)}
    return replace(_all_of(source, info.features), recounted=frozenset(info.features.keys() - left))


def convert(source: SourceDataset) -> EditPlan:
    """Convert a dataset of version 2.x to the current version."""
    if not source.info.is_v2:
        raise UsageError(
            f"{source.root} is {source.info.version} already: nothing to convert",
            code="dataset.current-version",
        )
    return _all_of(source, source.info.features)


def _all_of(source: SourceDataset, features: dict[str, dict[str, Any]]) -> EditPlan:
    if not source.rows:
        raise UsageError(f"{source.root} has no episodes", code="dataset.no-episodes")
    info = result_info(replace(source.info, features=features))
    return EditPlan(info, tuple(KeptEpisode(source, row) for row in source.rows))


def _check_episodes(source: SourceDataset, episodes: Iterable[int]) -> None:
    n = len(source.rows)
    for episode in episodes:
        if not 0 <= episode < n:
            has = f"it has 0 to {n - 1}" if n else "it has none"
            raise UsageError(
                f"{source.root} has no episode {episode} ({has})", code="dataset.unknown-episode"
            )


def _check_own_feature(source: SourceDataset, key: str, done: str) -> None:
    own = [name for name in source.info.features if name not in DEFAULT_FEATURES]
    if key in DEFAULT_FEATURES:
        raise UsageError(
            f"{key} is a default feature and cannot be {done}", code="dataset.default-feature"
        )
    if key not in own:
        hint = did_you_mean(key, own) or f" (it has {', '.join(own)})"
        raise UsageError(
            f"{source.root} has no feature {key!r}{hint}", code="dataset.unknown-feature"
        )
