"""Config of ``proctor rollout``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, ClassVar

from proctor.config.base import MOST_SEED, RECORDED_SEED, plugin_section
from proctor.config.robot_recording import RobotDatasetSettings
from proctor.config.sections.devices import MOST_FPS, RobotCommandConfig
from proctor.config.sections.display import DisplayFlags
from proctor.errors import UsageError
from proctor.policies.base import PolicyConfig
from proctor.settings import setting


class Strategy(Enum):
    """What is recorded during a rollout."""

    BASE = "base"
    SENTRY = "sentry"
    HIGHLIGHT = "highlight"
    EPISODIC = "episodic"
    DAGGER = "dagger"


class InferenceKind(Enum):
    """When the policy computes: between two steps, or while the robot moves."""

    SYNC = "sync"
    ASYNC = "async"
    RTC = "rtc"


@dataclass
class StrategySettings:
    """What is recorded (--strategy.*)."""

    help_group: ClassVar[str] = "Strategy"

    type: Strategy = setting(
        Strategy.BASE,
        "frames that are recorded: none (base), all in long episodes (sentry), those that a "
        "key selects (highlight), episodes with resets (episodic), a person's corrections "
        "(dagger)",
    )
    num_episodes: int | None = setting(
        None, "dagger: corrections to record (default: dataset.num_episodes)", least=1
    )
    record_autonomous: bool = setting(
        False, "dagger: record the policy's own steps too, not only corrections"
    )
    smooth_handover: bool = setting(
        True,
        "dagger and episodic: move leader and follower to the same pose before a person takes over",
    )
    reset_to_initial_position: bool = setting(
        True, "episodic: without a teleoperator, return to the start pose to reset"
    )
    target_video_file_size_mb: int | None = setting(
        None,
        "sentry: MB of video per episode, which sets the episodes' length (default: 200)",
        least=1,
    )
    ring_buffer_seconds: float = setting(
        10.0, "highlight: seconds before the key press that are kept", least=0, most=3600
    )
    ring_buffer_max_memory_mb: int = setting(
        1024, "highlight: maximum memory of the kept seconds, in MiB", least=1
    )
    save_key: str = setting("s", "highlight: key that starts and ends a recording")
    pause_key: str = setting(
        "space", "dagger: key that pauses and resumes the policy", flag="keyboard.pause_resume"
    )
    correction_key: str = setting(
        "tab", "dagger: key that starts and ends a correction", flag="keyboard.correction"
    )

    def validate(self) -> None:
        """Refuse keys with two meanings."""
        if self.pause_key == self.correction_key:
            raise UsageError(
                f"--strategy.keyboard.pause_resume and --strategy.keyboard.correction are both "
                f"{self.pause_key!r}",
                code="flag.conflict",
            )


@dataclass
class GuidanceSettings:
    """Real-time chunking: how a new chunk continues the old one (--inference.rtc.*)."""

    help_group: ClassVar[str] = "Inference"

    prefix_attention_schedule: str = setting(
        "LINEAR", "decay of the guidance weights: ZEROS, ONES, LINEAR, EXP"
    )
    max_guidance_weight: float = setting(10.0, "largest weight of the guidance")
    execution_horizon: int = setting(10, "step from which the old chunk has no influence")

    def as_rtc_config(self) -> dict[str, Any]:
        """Return the policy's ``rtc_config``, which checks the values."""
        return {
            "enabled": True,
            "prefix_attention_schedule": self.prefix_attention_schedule,
            "max_guidance_weight": self.max_guidance_weight,
            "execution_horizon": self.execution_horizon,
        }


@dataclass
class InferenceSettings:
    """When the policy computes (--inference.*)."""

    help_group: ClassVar[str] = "Inference"

    type: InferenceKind = setting(
        InferenceKind.SYNC,
        "the robot waits for inference (sync), or executes the old chunk meanwhile (async), "
        "which guides the new one (rtc, for flow matching policies)",
    )
    queue_threshold: int = setting(
        30, "async and rtc: actions left in the chunk when the next is requested", least=1
    )
    latency_s: float | None = setting(
        None,
        "async and rtc: seconds that an inference takes (default: measured before the robot moves)",
        least=0,
        most=60,
    )
    rtc: GuidanceSettings = field(default_factory=GuidanceSettings)


@dataclass
class RolloutConfig(DisplayFlags, RobotCommandConfig):
    """Config of a rollout: a robot, a policy, and what is recorded."""

    foreign: ClassVar[tuple[str, ...]] = (
        *RobotCommandConfig.foreign,
        *("policies", "family_fields", "robot_recording", "rollout"),
    )
    help_group: ClassVar[str] = "Rollout"
    help_groups: ClassVar[Mapping[str, str]] = {"Session": "seed resume"}
    first: ClassVar[str] = (
        "robot.type robot.port robot.id robot.cameras policy.path policy.type policy.device "
        "task fps duration interpolation_multiplier inference.type strategy.type teleop.type "
        "teleop.port dataset.repo_id dataset.root dataset.num_episodes dataset.episode_time_s "
        "return_to_initial_position resume live display_data config_path"
    )

    policy: PolicyConfig = plugin_section("policies", type_of_path="pretrained", kw_only=True)
    strategy: StrategySettings = field(default_factory=StrategySettings)
    inference: InferenceSettings = field(default_factory=InferenceSettings)
    dataset: RobotDatasetSettings = field(default_factory=RobotDatasetSettings)
    task: str = setting("", "instruction of the policy (default: dataset.single_task)")
    fps: int = setting(30, "actions of the policy per second", least=1, most=MOST_FPS)
    duration: float = setting(
        0.0, "seconds until the rollout ends (default: no limit)", least=0, most=1e7
    )
    interpolation_multiplier: int = setting(
        1, "targets sent per action, on a line from one action to the next", least=1, most=100
    )
    return_to_initial_position: bool = setting(
        True, "move back to the start pose at the end, in 3 seconds"
    )
    seed: int = setting(
        RECORDED_SEED,
        "seed of the policy's noise and of the first episode in a simulated scene",
        least=0,
        most=MOST_SEED,
    )
    resume: bool = setting(False, "record more episodes into the dataset of an earlier run")

    def __post_init__(self) -> None:
        if self.records and not self.dataset.single_task:
            self.dataset = replace(self.dataset, single_task=self.task or None)

    @property
    def records(self) -> bool:
        """Whether the strategy records a dataset."""
        return self.strategy.type is not Strategy.BASE

    @property
    def instruction(self) -> str:
        """The instruction of the policy and of the recorded episodes."""
        return self.task or self.dataset.single_task or ""

    def validate(self) -> None:
        """Refuse invalid values."""
        super().validate()
        self.strategy.validate()
        if self.strategy.type is Strategy.DAGGER and self.teleop is None:
            raise UsageError(
                "--strategy.type=dagger needs a teleoperator for corrections: give "
                "--teleop.type=NAME",
                code="flag.missing",
            )
        if self.records:
            self._validate_dataset()

    def _validate_dataset(self) -> None:
        given = self.dataset.single_task
        if self.task and given and self.task != given:
            raise UsageError(
                f"--task={self.task!r} and --dataset.single_task={given!r} differ; give one",
                code="flag.conflict",
            )
        self.dataset.validate_session(resume=self.resume)
        if self.dataset.fps not in (None, self.fps):
            raise UsageError(
                f"--dataset.fps={self.dataset.fps} and --fps={self.fps} differ: a frame is "
                "recorded for every action; leave --dataset.fps out",
                code="flag.conflict",
            )
