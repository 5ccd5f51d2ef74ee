"""Config of ``proctor replay``."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from proctor.config.base import Config, plugin_section
from proctor.errors import UsageError
from proctor.robots.base import RobotConfig
from proctor.settings import setting


@dataclass
class ReplayDatasetSettings:
    """The episode to repeat (--dataset.*)."""

    help_group: ClassVar[str] = "Dataset"

    repo_id: str | None = setting(
        None, "Hub id of the dataset, as user/name, or its folder (required without dataset.root)"
    )
    root: Path | None = setting(None, "folder of the dataset (default: $HF_LEROBOT_HOME/REPO_ID)")
    episode: int | None = setting(None, "number of the episode (required)", least=0)
    fps: int | None = setting(
        None, "frames per second; only the dataset's own are accepted (default: the dataset's)"
    )


@dataclass
class ReplayConfig(Config):
    """Config of ``proctor replay``."""

    foreign: ClassVar[tuple[str, ...]] = ("robots",)
    first: ClassVar[str] = (
        "robot.type robot.port robot.id dataset.repo_id dataset.root dataset.episode config_path"
    )

    robot: RobotConfig = plugin_section("robots")
    dataset: ReplayDatasetSettings = field(default_factory=ReplayDatasetSettings)

    def validate(self) -> None:
        """Refuse invalid values."""
        if self.dataset.repo_id is None and self.dataset.root is None:
            raise UsageError(
                "no dataset: give --dataset.repo_id=USER/NAME or --dataset.root=DIR",
                code="flag.missing",
            )
        if self.dataset.episode is None:
            raise UsageError("no episode: give --dataset.episode=N", code="flag.missing")
        super().validate()
