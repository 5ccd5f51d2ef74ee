"""Config of ``proctor record --robot.type=...``: episodes of a teleoperated robot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import ClassVar

from proctor.callbacks.staged_episodes import EpisodeFilter
from proctor.config.base import MOST_SEED, RECORDED_SEED
from proctor.config.recording import RecordedDataset
from proctor.config.sections.devices import MOST_FPS, RobotCommandConfig
from proctor.config.sections.display import DisplayFlags
from proctor.errors import UsageError
from proctor.settings import setting
from proctor.types import MAX_EPISODES

_TAKES_PER_EPISODE = 4


@dataclass
class RobotDatasetSettings(RecordedDataset):
    """The dataset and its episodes (--dataset.*)."""

    single_task: str | None = setting(
        None,
        "instruction of all episodes, as 'put the cube into the bin' (required; with "
        "--resume the dataset's own, if it has one)",
    )
    fps: int | None = setting(
        None, "frames per second (default: 30; with --resume the dataset's)", least=1, most=MOST_FPS
    )
    episode_time_s: float = setting(60.0, "longest episode in seconds", above=0, most=1e6)
    reset_time_s: float = setting(
        60.0,
        "seconds to reset the scene by hand; a simulated scene resets itself",
        least=0,
        most=1e6,
    )
    num_episodes: int = setting(
        50, "episodes to record; with --resume, in addition", least=1, most=MAX_EPISODES
    )
    video: bool = setting(True, "store images as videos; false: losslessly, as PNG in the tables")
    encoder_queue_maxsize: int | None = setting(
        None,
        "frames that may wait for the encoder before the loop waits for it (default: as many "
        "as fit in 256 MiB, 30 to 900)",
        least=1,
    )
    push_to_hub: bool = setting(False, "upload the dataset at the end of the session")
    private: bool | None = setting(
        None, "with push_to_hub: make a new repository private (default: as your Hub account says)"
    )
    no_stamp: bool = setting(
        True, "keep repo_id as it is; false: append date and time, as LeRobot does"
    )

    def validate_session(self, *, resume: bool) -> None:
        """Refuse a dataset without a valid name or an instruction."""
        self.validate()
        if not resume and not self.single_task:
            raise UsageError(
                "no instruction: give --dataset.single_task='put the cube into the bin'",
                code="flag.missing",
            )
        if self.push_to_hub and self.repo_id is None:
            raise UsageError(
                "--dataset.push_to_hub needs --dataset.repo_id=USER/NAME", code="flag.missing"
            )

    def stamped(self, now: datetime) -> RobotDatasetSettings:
        """Return these settings with date and time in ``repo_id``, if that is asked for."""
        if self.no_stamp or self.repo_id is None:
            return self
        return replace(self, repo_id=f"{self.repo_id}_{now:%Y%m%d_%H%M%S}")


@dataclass
class TakeSettings:
    """Which takes are kept on a simulated robot (--record.*)."""

    help_group: ClassVar[str] = "Takes"

    keep: EpisodeFilter | None = setting(
        None,
        "takes to keep on a simulated robot: the successful ones, or all (default: success "
        "with a scripted teleoperator, else all)",
    )
    max_attempts: int | None = setting(
        None,
        "takes after which a session with --record.keep=success ends (default: "
        f"{_TAKES_PER_EPISODE} times num_episodes)",
    )


@dataclass
class RobotRecordConfig(DisplayFlags, RobotCommandConfig):
    """Config of a recording with a robot and a teleoperator."""

    foreign: ClassVar[tuple[str, ...]] = ("robots", "robot_recording")
    help_groups: ClassVar[Mapping[str, str]] = {"Session": "seed resume"}
    first: ClassVar[str] = (
        "robot.type robot.port robot.id robot.cameras teleop.type teleop.port teleop.id "
        "dataset.repo_id dataset.root dataset.single_task dataset.fps dataset.num_episodes "
        "dataset.episode_time_s dataset.reset_time_s dataset.video dataset.push_to_hub "
        "record.keep seed resume live display_data config_path"
    )

    dataset: RobotDatasetSettings = field(default_factory=RobotDatasetSettings)
    record: TakeSettings = field(default_factory=TakeSettings)
    seed: int = setting(
        RECORDED_SEED,
        "seed of the first take in a simulated scene; take i uses seed + i",
        least=0,
        most=MOST_SEED,
    )
    resume: bool = setting(False, "record more episodes into the dataset of an earlier run")

    @property
    def max_takes(self) -> int:
        """Takes after which a session that keeps only successes ends."""
        if self.record.max_attempts is None:
            return min(_TAKES_PER_EPISODE * self.dataset.num_episodes, MAX_EPISODES)
        return self.record.max_attempts

    def validate(self) -> None:
        """Refuse invalid values."""
        super().validate()
        self.dataset.validate_session(resume=self.resume)
        least, most = self.dataset.num_episodes, self.record.max_attempts
        if most is not None and most < least:
            raise UsageError(
                f"--record.max_attempts must be at least {least}, got {most}",
                code="flag.out-of-range",
            )
        if self.teleop is None:
            raise UsageError(
                "no teleoperator: give --teleop.type=NAME (a policy drives the robot with "
                "proctor rollout)",
                code="flag.missing",
            )
