"""What benchmarks share in reading their flags: lists of names, task ids, cameras."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from proctor.errors import UsageError
from proctor.features import IMAGES
from proctor.types import Task

LARGEST_SIDE = 4096
"""Of an image, in pixels; more than any camera of a robot has."""


def require_positive(name: str, value: int, most: int = 10**9) -> None:
    """Refuse ``--env.NAME`` below 1 or above ``most``."""
    if value < 1:
        raise UsageError(f"--env.{name} must be at least 1, not {value}")
    if value > most:
        raise UsageError(f"--env.{name} must be at most {most}, not {value}")


def split_names(text: str, *, flag: str) -> list[str]:
    """Return the comma-separated names that ``--env.FLAG`` holds."""
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise UsageError(f"--env.{flag} has an empty name in {text!r}")
    return names


def ids_in_group(suite: str, count: int, wanted: Sequence[int] | None) -> list[int]:
    """Return the task ids of a suite of ``count`` tasks that ``--env.task_ids`` leaves."""
    if wanted is None:
        return list(range(count))
    if not wanted:
        raise UsageError("--env.task_ids is empty; leave it out to run every task")
    for task_id in wanted:
        if not 0 <= task_id < count:
            choice = "0" if count == 1 else f"0-{count - 1}"
            raise UsageError(f"{suite} has no task {task_id} (choose {choice})")
    return sorted(set(wanted))


def tasks_of_suite(
    suite: str,
    rows: Sequence[tuple[str, str]],
    wanted: Sequence[int] | None,
    horizon: int,
    fps: int,
) -> list[Task]:
    """Return the tasks that ``--env.task_ids`` leaves of a suite.

    ``rows`` holds name and instruction of all its tasks, in the order of their ids.
    """
    ids = ids_in_group(suite, len(rows), wanted)
    return [Task(suite, task_id, *rows[task_id], horizon, fps) for task_id in ids]


def unique_tasks(tasks: Iterable[Task]) -> list[Task]:
    """Return each task once, where it is named first."""
    chosen: dict[str, Task] = {}
    for task in tasks:
        chosen.setdefault(task.name, task)
    return list(chosen.values())


def check_cameras(
    benchmark: str, cameras: Sequence[str], known: Sequence[str], renamed: Mapping[str, str]
) -> None:
    """Refuse cameras the benchmark does not have, and new names for cameras not in use."""
    for camera in cameras:
        if camera not in known:
            raise UsageError(f"{benchmark} has no camera {camera!r} (choose {', '.join(known)})")
    for camera in renamed:
        if camera not in cameras:
            raise UsageError(
                f"--env.camera_name_mapping names {camera!r}, "
                f"which is not in --env.camera_name ({', '.join(cameras)})"
            )


def cameras_by_key(keys: Sequence[str], cameras: Sequence[str]) -> dict[str, str]:
    """Return feature key -> camera, refusing one key for two cameras."""
    if len(set(keys)) < len(keys):
        raise UsageError(f"two cameras would share a feature: {', '.join(keys)}")
    return dict(zip(keys, cameras, strict=True))


def image_key(name: str) -> str:
    """Return the feature key for an image that a user named ``name`` or by its whole key."""
    return name if name.startswith("observation.") else IMAGES + name
