"""Parsing of flags that benchmarks share: names of tasks, task ids, cameras."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from proctor.errors import UsageError, did_you_mean
from proctor.features import IMAGES
from proctor.types import Task

LARGEST_SIDE = 4096
"""Largest height or width of an image, in pixels."""
LONGEST_EPISODE = 10**9
"""Largest number of steps of an episode."""


def require_positive(name: str, value: int, most: int = LONGEST_EPISODE) -> None:
    """Refuse ``--env.NAME`` below 1 or above ``most``."""
    if value < 1:
        raise UsageError(f"--env.{name} must be at least 1, not {value}", code="flag.out-of-range")
    if value > most:
        raise UsageError(
            f"--env.{name} must be at most {most}, not {value}", code="flag.out-of-range"
        )


def split_names(text: str, *, flag: str) -> list[str]:
    """Return the comma-separated names in the value of ``--env.FLAG``."""
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise UsageError(f"--env.{flag} has an empty name in {text!r}", code="flag.invalid-value")
    return names


def ids_in_group(suite: str, count: int, wanted: Sequence[int] | None) -> list[int]:
    """Return the task ids that ``--env.task_ids`` selects from a suite of ``count`` tasks."""
    if wanted is None:
        return list(range(count))
    if not wanted:
        raise UsageError(
            "--env.task_ids is empty; leave it out to run every task", code="flag.empty"
        )
    for task_id in wanted:
        if not 0 <= task_id < count:
            choice = "0" if count == 1 else f"0-{count - 1}"
            raise UsageError(
                f"{suite} has no task {task_id} (choose {choice})", code="env.unknown-task"
            )
    return sorted(set(wanted))


def tasks_of_suite(
    suite: str,
    rows: Sequence[tuple[str, str]],
    wanted: Sequence[int] | None,
    horizon: int,
    fps: int,
) -> list[Task]:
    """Return the tasks that ``--env.task_ids`` selects from a suite.

    ``rows`` has name and instruction of all its tasks, in the order of their ids.
    """
    ids = ids_in_group(suite, len(rows), wanted)
    return [Task(suite, task_id, *rows[task_id], horizon, fps) for task_id in ids]


@dataclass(frozen=True)
class TaskGroups:
    """The groups that ``--env.task`` of a benchmark may name."""

    benchmark: str
    rows: Mapping[str, Sequence[tuple[str, str]]]
    """Group -> name and instruction of its tasks, in the order of their ids."""
    prefix: str
    """May stand before a name: gymnasium's namespace, as "gym_aloha/"."""
    fps: int

    def select(self, names: str, wanted: Sequence[int] | None, horizon: int) -> list[Task]:
        """Return the tasks of all groups in ``names``, each task once."""
        tasks: list[Task] = []
        for item in split_names(names, flag="task"):
            suite = item.removeprefix(self.prefix)
            if suite not in self.rows:
                hint = did_you_mean(suite, self.rows) or f" (choose {', '.join(self.rows)})"
                raise UsageError(
                    f"{self.benchmark} has no task {item!r}{hint}", code="env.unknown-task"
                )
            tasks += tasks_of_suite(suite, self.rows[suite], wanted, horizon, self.fps)
        return unique_tasks(tasks)


def unique_tasks(tasks: Iterable[Task]) -> list[Task]:
    """Return the tasks without duplicates, in the order of their first occurrence."""
    chosen: dict[str, Task] = {}
    for task in tasks:
        chosen.setdefault(task.name, task)
    return list(chosen.values())


def check_cameras(
    benchmark: str, cameras: Sequence[str], known: Sequence[str], renamed: Mapping[str, str]
) -> None:
    """Refuse cameras that the benchmark does not have, and new names of cameras not in use."""
    for camera in cameras:
        if camera not in known:
            raise UsageError(
                f"{benchmark} has no camera {camera!r} (choose {', '.join(known)})",
                code="env.unknown-camera",
            )
    for camera in renamed:
        if camera not in cameras:
            raise UsageError(
                f"--env.camera_name_mapping names {camera!r}, "
                f"which is not in --env.camera_name ({', '.join(cameras)})",
                code="env.unknown-camera",
            )


def cameras_by_key(keys: Sequence[str], cameras: Sequence[str]) -> dict[str, str]:
    """Return feature key -> camera; refuse one key for two cameras."""
    if len(set(keys)) < len(keys):
        raise UsageError(
            f"two cameras would share a feature: {', '.join(keys)}", code="flag.duplicate"
        )
    return dict(zip(keys, cameras, strict=True))


def image_key(name: str) -> str:
    """Return the feature key of an image: ``name`` itself if it is a whole key."""
    return name if name.startswith("observation.") else IMAGES + name
