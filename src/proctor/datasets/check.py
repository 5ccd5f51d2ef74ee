"""Validate a dataset: check everything that readers rely on."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from proctor.datasets.checks.decoding import MeanColours
from proctor.datasets.checks.episodes import (
    TaskTable,
    check_episodes,
    check_tasks,
    check_totals,
    is_new,
    no_episodes,
    read_task_table,
)
from proctor.datasets.checks.findings import (
    DatasetFinding,
    FindingLevel,
    RepairCommands,
    episodes_text,
    with_repairs,
)
from proctor.datasets.checks.images import check_images
from proctor.datasets.checks.rows import RowCheck
from proctor.datasets.checks.stats import check_camera, check_episode_stats, check_stats
from proctor.datasets.checks.table import EpisodeTable, read_episode_table
from proctor.datasets.checks.uncounted import find_uncounted
from proctor.datasets.checks.videos import VideoCheck
from proctor.datasets.edit.destination import free_backup
from proctor.datasets.format.episodes import read_episode_stats
from proctor.datasets.format.info import INFO_FILE, Info, data_file, video_file
from proctor.datasets.format.info_file import read_info, write_info
from proctor.datasets.format.tables import STATS_FILE, read_stats
from proctor.datasets.format.tasks import TASKS_FILE, write_tasks
from proctor.errors import DatasetError
from proctor.system.files import UNFINISHED
from proctor.system.links import leaving_links, refuse_links
from proctor.system.locks import acquire_lock

_NAMED = 3


def check_files(
    root: Path, info: Info, table: EpisodeTable, mends: RepairCommands
) -> Iterator[DatasetFinding]:
    """Check that every data and video file belongs to an episode, is finished, and lies here."""
    named = {
        data_file(root, info, int(chunk), int(file))
        for chunk, file in zip(table.chunk, table.file, strict=True)
    }
    for key, spans in table.spans.items():
        named |= {
            video_file(root, info, key, int(chunk), int(file))
            for chunk, file in zip(spans.chunk, spans.file, strict=True)
        }
    for folder in ("data", "videos"):
        found = (path for path in sorted((root / folder).rglob("*")) if path.is_file())
        yield from _orphaned(root, [path for path in found if path not in named], mends)
    unfinished = sorted((root / "meta").rglob(f"*{UNFINISHED}"))
    yield from _orphaned(root, unfinished, mends)
    for link in leaving_links(root):
        what = "a link that leads out of the dataset, or to a folder: it cannot be edited or pushed"
        where = link.relative_to(root).as_posix()
        yield DatasetFinding(FindingLevel.WARNING, "files.link", what, where, mends.remove([link]))
    pictures = root / "images"
    if any(path.is_file() for path in pictures.rglob("*")):  # LeRobot leaves the empty folder
        what = "images of an episode that was not finished: readers ignore them"
        mend = mends.remove([pictures])
        yield DatasetFinding(FindingLevel.WARNING, "files.unfinished", what, "images", mend)


def _orphaned(root: Path, paths: list[Path], mends: RepairCommands) -> Iterator[DatasetFinding]:
    if not paths:
        return
    names = [path.relative_to(root).as_posix() for path in paths[:_NAMED]]
    more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
    what = "no episode is in this file" if len(paths) == 1 else "no episode is in these files"
    where = ", ".join(names) + more
    yield DatasetFinding(FindingLevel.WARNING, "files.orphaned", what, where, mends.remove(paths))


@dataclass(frozen=True)
class CheckReport:
    """The result of a check: all findings, errors first."""

    root: Path
    info: Info | None
    """None if info.json itself is invalid."""
    findings: tuple[DatasetFinding, ...]
    decoded: bool
    """Whether images were to be decoded."""
    n_images: int = 0
    """Images that the episodes of all cameras should have."""
    n_decoded: int = 0
    """Images that were decoded without an error."""

    @property
    def errors(self) -> int:
        """Number of findings that fail the check."""
        return sum(finding.level is FindingLevel.ERROR for finding in self.findings)


def check(
    root: Path, *, decode: bool = True, tell: Callable[[str], None] = lambda text: None
) -> CheckReport:
    """Check the dataset in ``root``; ``tell`` is called with the progress.

    Without ``decode``, images are not decoded, and only the headers of videos are read.
    """
    if not (root / INFO_FILE).is_file():
        raise DatasetError(
            f"{root} is not a dataset: it has no {INFO_FILE}", code="dataset.not-found"
        )
    try:
        info = read_info(root)
    except DatasetError as error:
        return CheckReport(
            root, None, (_unreadable(root, "info.unreadable", INFO_FILE, error),), decode
        )
    look = _DatasetCheck(root, info, decode, tell)
    findings = with_repairs(list(look.all()), look.mends, info.total_episodes)
    findings.sort(key=lambda finding: finding.level is not FindingLevel.ERROR)
    return CheckReport(
        root,
        info,
        tuple(findings),
        decode,
        n_images=len(info.cameras) * info.total_frames,
        n_decoded=sum(seen.decoded for seen in look.colours.values()),
    )


def repair(root: Path) -> list[str]:
    """Rewrite what can be derived: the totals, and the order and index of tasks.

    Complete episodes that info.json does not count are counted in; incomplete ones stay left out.
    The replaced files are kept beside the dataset, in ROOT_meta_old. Return the changes as text.
    """
    refuse_links(root)
    lock = acquire_lock(root)
    try:
        info = read_info(root)
        done: list[str] = []
        if is_new(root, info):
            return done
        backup: Path | None = None
        tasks = read_task_table(root, info)
        if not info.is_v2 and not (tasks.is_index and tasks.in_order):
            backup = _keep_meta_file(root, TASKS_FILE, backup)
            write_tasks(root, tasks.ordered())
            done.append(f"wrote the {len(tasks.names)} tasks again, in order, with their index")
        table = read_episode_table(root, info)
        uncounted = find_uncounted(root, info, table)
        now = replace(uncounted.counted_in(info, table), total_tasks=len(tasks.names))
        said, found = _totals(info), _totals(now)
        if said != found:
            backup = _keep_meta_file(root, INFO_FILE, backup)
            write_info(root, now)
            done.append(f"set totals of episodes, frames and tasks from {said} to {found}")
        if uncounted.incomplete:
            left_out = episodes_text(uncounted.incomplete)
            done.append(f"left out {left_out}, incomplete: {uncounted.reason}")
        if backup is not None:
            done.append(f"backup of the replaced files: {backup}")
        return done
    finally:
        lock.release()


def _totals(info: Info) -> tuple[int, int, int]:
    return info.total_episodes, info.total_frames, info.total_tasks


def _keep_meta_file(root: Path, name: str, backup: Path | None) -> Path:
    """Copy a file that will be replaced to ``backup``, or to a new folder; return the folder."""
    if backup is None:
        backup = free_backup(root.resolve(), "_meta_old")
        backup.mkdir()
    path = root / name
    if path.is_symlink() or path.is_file():  # a link stays a link: others may own its target
        shutil.copyfile(path, backup / path.name, follow_symlinks=False)
    return backup


@dataclass(frozen=True)
class _DatasetCheck:
    root: Path
    info: Info
    decode: bool
    tell: Callable[[str], None]
    colours: dict[str, MeanColours] = field(default_factory=dict)
    """Camera -> its decoded images."""

    @property
    def mends(self) -> RepairCommands:
        return RepairCommands(self.root)

    def all(self) -> Iterator[DatasetFinding]:
        """Yield all findings; an unreadable file ends only the checks that need it."""
        if is_new(self.root, self.info):
            yield no_episodes(self.mends)
            return
        tasks: TaskTable | None = None
        self.tell("tasks and episodes")
        try:
            tasks = read_task_table(self.root, self.info)
            yield from check_tasks(self.info, tasks, self.mends)
        except DatasetError as error:
            yield _unreadable(self.root, "tasks.unreadable", "meta", error)
        try:
            rows = read_episode_table(self.root, self.info)
        except DatasetError as error:
            yield _unreadable(self.root, "episodes.unreadable", "meta", error)
            return
        uncounted = find_uncounted(self.root, self.info, rows)
        yield from check_totals(self.info, rows, uncounted, tasks, self.mends)
        info = uncounted.counted_in(self.info, rows)
        yield from replace(self, info=info)._frames(rows.first(info.total_episodes), tasks)

    def _frames(self, table: EpisodeTable, tasks: TaskTable | None) -> Iterator[DatasetFinding]:
        """Yield the findings in episodes: those that info.json counts, and complete uncounted ones.

        An episode that info.json does not count has one finding, and its rows none.
        """
        yield from check_episodes(table, tasks, self.mends)
        if not len(table) or not np.array_equal(table.episode, np.arange(len(table))):
            return  # without episode numbers, nothing else can be checked
        row_check = RowCheck(
            self.root, self.info, table, None if tasks is None else len(tasks.names), self.mends
        )
        self.tell("frames")
        yield from row_check.run()
        yield from self._videos(table, self.colours)
        if self.decode:
            for key in self.info.image_keys:
                self.tell(f"images of {key}")
                seen = self.colours.setdefault(key, MeanColours())
                yield from check_images(self.root, self.info, table, key, seen)
        self.tell("statistics")
        yield from self._stats(table, row_check, self.colours)
        yield from check_files(self.root, self.info, table, self.mends)

    def _videos(
        self, table: EpisodeTable, colours: dict[str, MeanColours]
    ) -> Iterator[DatasetFinding]:
        videos = VideoCheck(self.root, self.info, table, self.mends)
        files = videos.files()
        for number, ((key, path), rows) in enumerate(files.items(), 1):
            self.tell(f"video {number} of {len(files)}")
            yield from videos.spans(key, path, rows)
            facts, found = videos.facts(key, path, rows)
            yield from found
            if facts is None:
                continue
            if self.decode:
                yield from videos.decoded(key, path, rows, colours.setdefault(key, MeanColours()))
            elif facts.n_frames:
                yield from videos.length(key, path, rows, facts.n_frames)

    def _stats(
        self, table: EpisodeTable, rows: RowCheck, colours: dict[str, MeanColours]
    ) -> Iterator[DatasetFinding]:
        measured = rows.measured if rows.is_whole else {}
        try:
            per_episode = read_episode_stats(self.root, self.info)
            where = table.written_in[0]
            yield from check_episode_stats(per_episode, measured, where, self.mends)
        except DatasetError as error:
            yield _unreadable(self.root, "stats.unreadable", table.written_in[0], error)
            per_episode = []
        try:
            stats = read_stats(self.root)
        except DatasetError as error:
            yield _unreadable(self.root, "stats.unreadable", STATS_FILE, error, self.mends.stats())
            return
        if self.info.version == "v2.1" and not stats and per_episode:
            return  # they are computed from those of the episodes
        yield from check_stats(self.info, stats, measured, self.mends)
        for key, seen in colours.items():
            mean = seen.mean()
            if mean is not None and not self.info.is_depth(key):
                yield from check_camera(key, stats, np.asarray(mean), self.mends)


def _unreadable(
    root: Path, kind: str, where: str, error: DatasetError, mend: str = ""
) -> DatasetFinding:
    return DatasetFinding(FindingLevel.ERROR, kind, str(error).replace(f"{root}/", ""), where, mend)
