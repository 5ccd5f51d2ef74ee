"""The dataset of a recording session: create it, or resume one that fits the robot."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proctor.control.loop.units import check_channels
from proctor.control.robot_features import camera_shapes, state_channels
from proctor.control.robot_frames import robot_features
from proctor.datasets.format.info import Info
from proctor.datasets.format.info_file import read_info
from proctor.datasets.format.tasks import read_tasks
from proctor.datasets.frames.encoder import Codec
from proctor.datasets.writer import DatasetWriter
from proctor.datasets.writing.frame import own_features
from proctor.datasets.writing.layout import FileLayout
from proctor.datasets.writing.staging import has_content
from proctor.errors import UsageError, strip_control_codes
from proctor.features import ACTION, IMAGES, STATE
from proctor.robots.base import Robot
from proctor.system.files import recover_swap

_FORMER_NAMES = {
    "so100": "so_follower",
    "so101": "so_follower",
    "so100_follower": "so_follower",
    "so101_follower": "so_follower",
    "bi_so100_follower": "bi_so_follower",
    "bi_so101_follower": "bi_so_follower",
    "koch": "koch_follower",
    "lekiwi_client": "lekiwi",
}
"""Robot types in older datasets, and the names of today."""
_REMEDY = "record into another --dataset.root"


@dataclass(frozen=True)
class RecordedDataset:
    """Where a session records, and the features of its frames."""

    root: Path
    fps: int
    features: Mapping[str, Mapping[str, Any]]
    """Entries of meta/info.json; those of the dataset that is resumed."""
    robot_type: str
    codec: Codec | None
    is_resumed: bool
    has_units: bool
    """Whether the dataset states units; those of LeRobot do not."""
    n_before: int = 0
    """Episodes before this session."""

    def open(self) -> DatasetWriter:
        """Create or resume the dataset."""
        if self.is_resumed:
            return DatasetWriter.resume(self.root, self.codec)
        layout = FileLayout(robot_type=self.robot_type)
        return DatasetWriter.create(self.root, self.fps, self.features, self.codec, layout)

    def remove_if_empty(self, writer: DatasetWriter) -> bool:
        """Remove a new dataset without episodes, so that the same command can run again."""
        if self.is_resumed or writer.n_episodes:
            return False
        shutil.rmtree(self.root)
        return True


def new_dataset(
    root: Path, robot: Robot, fps: int, *, video: bool, codec: Codec
) -> RecordedDataset:
    """Plan a new dataset in ``root``; nothing is written."""
    if root.exists() and (not root.is_dir() or has_content(root)):
        raise UsageError(
            f"{root} exists; add --resume=true to record more episodes into it, or choose another "
            "--dataset.root",
            code="dataset.exists",
        )
    return RecordedDataset(
        root=root,
        fps=fps,
        features=robot_features(robot, video=video),
        robot_type=robot.name,
        codec=codec,
        is_resumed=False,
        has_units=True,
    )


def resumed_dataset(
    root: Path, robot: Robot, fps: int | None, extra: Collection[str] = ()
) -> RecordedDataset:
    """Check that the dataset in ``root`` fits the robot, to record more episodes into it.

    A dataset of LeRobot has no extras and no units: new episodes have none either. ``extra`` are
    further features that every frame will have; the dataset must have them too.
    """
    recover_swap(root)
    info = read_info(root)
    if fps is not None and fps != info.fps:
        raise UsageError(
            f"--dataset.fps={fps}: {root} has {info.fps} frames per second; leave --dataset.fps "
            f"out, or {_REMEDY}",
            code="dataset.fps-mismatch",
        )
    check_robot_type(info, robot, _REMEDY)
    _check_cameras(info, robot)
    stated = [
        check_channels(key, info.features.get(key, {}), channels, _REMEDY)
        for key, channels in ((ACTION, robot.action_features), (STATE, state_channels(robot)))
    ]
    known = robot_features(robot)
    for key in own_features(info):
        if key not in known and key not in extra:
            raise UsageError(
                f"{root} has the feature {key}, which a recording of {robot.name} lacks; {_REMEDY}",
                code="dataset.wrong-features",
            )
    for key in extra:
        if key not in info.features:
            raise UsageError(
                f"{root} lacks the feature {key}, which this recording has; {_REMEDY}",
                code="dataset.wrong-features",
            )
    return RecordedDataset(
        root=root,
        fps=info.fps,
        features={key: info.features[key] for key in own_features(info)},
        robot_type=robot.name,
        codec=None,
        is_resumed=True,
        has_units=all(stated),
        n_before=info.total_episodes,
    )


def only_task(root: Path) -> str | None:
    """Return the task of a dataset that has exactly one, else None."""
    info = read_info(root)
    tasks = read_tasks(root, info)[: info.total_tasks]
    return tasks[0] if len(tasks) == 1 else None


def check_robot_type(info: Info, robot: Robot, remedy: str) -> None:
    """Refuse a dataset of another kind of robot; older names of the same kind are accepted."""
    recorded = info.robot_type
    if recorded is not None and _FORMER_NAMES.get(recorded, recorded) != robot.name:
        raise UsageError(
            f"the dataset was recorded with a {strip_control_codes(recorded, 60)}, and this robot "
            f"is a {robot.name}; choose that --robot.type, or {remedy}",
            code="dataset.robot-mismatch",
        )


def _check_cameras(info: Info, robot: Robot) -> None:
    shapes = {f"{IMAGES}{name}": shape for name, shape in camera_shapes(robot).items()}
    recorded = {key: tuple(info.shape(key)) for key in info.cameras}
    for key in [*recorded, *shapes]:
        if recorded.get(key) != shapes.get(key):
            raise UsageError(
                f"{key}: the dataset has {_size(recorded.get(key))}, the robot has "
                f"{_size(shapes.get(key))}; change --robot.cameras, or {_REMEDY}",
                code="dataset.camera-mismatch",
            )


def _size(shape: tuple[int, ...] | None) -> str:
    return "no such camera" if shape is None else "x".join(map(str, (shape[1], shape[0])))
