"""The format of a dataset (LeRobotDataset v3.0; v2.1 and v2.0 are read): the door to its parts."""

from __future__ import annotations

from proctor.datasets.info import (
    DEFAULT_FEATURES,
    VERSION,
    Info,
    data_file,
    episodes_file,
    video_file,
)
from proctor.datasets.info_file import read_info, write_info
from proctor.datasets.schema import arrow_schema
from proctor.datasets.tables import Stats, read_stats, read_tasks, write_stats, write_tasks
from proctor.errors import DatasetError

__all__ = [
    "DEFAULT_FEATURES",
    "VERSION",
    "DatasetError",
    "Info",
    "Stats",
    "arrow_schema",
    "data_file",
    "episodes_file",
    "read_info",
    "read_stats",
    "read_tasks",
    "video_file",
    "write_info",
    "write_stats",
    "write_tasks",
]
