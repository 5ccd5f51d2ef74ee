"""Episodes that the tables hold after those that info.json counts, and which are complete."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from proctor.datasets.checks.columns import numbers_of
from proctor.datasets.checks.table import EpisodeTable, read_episode_table
from proctor.datasets.format.episodes import OLD_EPISODES_FILE
from proctor.datasets.format.info import Info, data_file, episode_files, video_file
from proctor.datasets.format.info_file import read_info
from proctor.datasets.format.tables import open_table, read_lines, read_table
from proctor.datasets.frames.video import probe
from proctor.datasets.writing.staging import StagingArea
from proctor.errors import DatasetError


@dataclass(frozen=True)
class UncountedEpisodes:
    """The episodes after the first ``total_episodes``, which readers leave out."""

    complete: tuple[int, ...]
    """Episodes that directly follow the counted ones, with all their rows and video frames."""
    incomplete: tuple[int, ...]
    """The first incomplete episode, and all after it."""
    reason: str = ""
    """Why the first incomplete episode is incomplete."""

    def counted_in(self, info: Info, table: EpisodeTable) -> Info:
        """Return ``info`` with the totals of the counted and the complete episodes."""
        counted = table.first(info.total_episodes + len(self.complete))
        total = len(counted)
        return replace(
            info,
            total_episodes=total,
            total_frames=int(counted.length.sum()),
            splits={"train": f"0:{total}"},
        )


def find_uncounted(root: Path, info: Info, table: EpisodeTable) -> UncountedEpisodes:
    """Return the episodes of ``table`` that ``info`` does not count."""
    rows = range(info.total_episodes, len(table))
    why_incomplete = _completeness_test(root, info, table)
    for row in rows:
        reason = why_incomplete(row)
        if reason:
            complete, incomplete = rows[: row - rows.start], rows[row - rows.start :]
            return UncountedEpisodes(
                tuple(table.numbers(complete)), tuple(table.numbers(incomplete)), reason
            )
    return UncountedEpisodes(tuple(table.numbers(rows)), ())


def refuse_uncounted(root: Path) -> None:
    """Refuse a dataset with complete episodes that info.json does not count.

    Readers leave them out, so an edit would drop them. The episodes of an append in progress are
    not among them: info.json counts them at its end.
    """
    info = read_info(root)
    try:
        if _stored(root, info) <= info.total_episodes:
            return
        table = read_episode_table(root, info)
    except DatasetError:  # nothing in a damaged table can be counted in
        return
    intended = StagingArea(root).intended()
    info = read_info(root)  # a recorder may have finished its append since the table was read
    if intended is not None and intended.episode == info.total_episodes:
        return
    n = len(find_uncounted(root, info, table).complete)
    if n:
        total = info.total_episodes
        raise DatasetError(
            f"{root}: meta/info.json counts {total} episodes, the tables have {total + n} complete "
            f"ones; proctor data check {root} --mend counts them in (proctor data delete removes "
            "episodes)",
            code="dataset.uncounted-episodes",
        )


def _stored(root: Path, info: Info) -> int:
    """Return the number of rows in the episodes table."""
    if info.is_v2:
        return sum(1 for _ in read_lines(root / OLD_EPISODES_FILE))
    return sum(int(open_table(path).metadata.num_rows) for path in episode_files(root))


def _completeness_test(root: Path, info: Info, table: EpisodeTable) -> Callable[[int], str]:
    """Return a function that says why an episode is incomplete; empty text if it is complete."""

    @cache
    def rows_in(path: Path) -> dict[int, int]:
        found = read_table(path, ["episode_index"])
        if "episode_index" not in found.column_names:
            return {}
        episodes, counts = np.unique(numbers_of(found["episode_index"]), return_counts=True)
        return dict(zip(episodes.tolist(), counts.tolist(), strict=True))

    @cache
    def frames_in(path: Path) -> int:
        facts = probe(path)
        return facts.n_frames or round(facts.duration_s * info.fps)

    def why_incomplete(row: int) -> str:
        length = int(table.length[row])
        before = int(table.to_index[row - 1]) if row else 0
        span = int(table.from_index[row]), int(table.to_index[row])
        if int(table.episode[row]) != row or length < 1 or span != (before, before + length):
            return "its row in the episodes table does not follow the one before"
        data = data_file(root, info, int(table.chunk[row]), int(table.file[row]))
        rows = rows_in(data).get(row, 0)
        if rows != length:
            return f"{data.relative_to(root)} has {rows} of its {length} rows"
        for key, spans in table.spans.items():
            video = video_file(root, info, key, int(spans.chunk[row]), int(spans.file[row]))
            end = round(float(spans.from_s[row]) * info.fps) + length
            if abs(float(spans.to_s[row]) * info.fps - end) > 0.5:
                return f"its timestamps in {video.relative_to(root)} are not of {length} frames"
            if frames_in(video) < end:
                return f"{video.relative_to(root)} has {frames_in(video)} frames, it needs {end}"
        return ""

    def told(row: int) -> str:
        try:
            return why_incomplete(row)
        except (DatasetError, ValueError) as error:
            return str(error).replace(f"{root}/", "")

    return told
