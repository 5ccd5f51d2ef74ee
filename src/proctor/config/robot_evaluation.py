"""Config of ``proctor eval --robot.type=NAME``: trials of policies on a robot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import ClassVar

from proctor.config.base import MOST_SEED, Config, plugin_section
from proctor.config.flags.parsing import path_of
from proctor.config.sections.devices import MOST_FPS
from proctor.config.sections.display import DisplayFlags
from proctor.fingerprint import PRESENTATION
from proctor.policies.base import PolicyConfig
from proctor.robots.base import RobotConfig
from proctor.settings import setting
from proctor.stats.best_policy import BETTER
from proctor.stats.rates import LEAST_ALPHA
from proctor.stats.stopping import NEVER, parse_stop_rule


class JudgeKind(Enum):
    """Who judges trials."""

    AUTO = "auto"
    PERSON = "person"
    SCENE = "scene"


@dataclass
class TrialSettings:
    """How many trials an evaluation on a robot has, and how long each lasts."""

    help_group: ClassVar[str] = "Trials"

    n_episodes: int = setting(
        50,
        "most trials of each policy; trial i of all policies has one scene",
        PRESENTATION,
        least=1,
        most=10_000,
    )
    episode_time_s: float = setting(
        30.0, "seconds after which a trial ends, however slow the policy is", least=0.1, most=3600
    )
    stop_when: str = setting(
        BETTER,
        "stop early: better (one of several policies is significantly better than all "
        "others), ci_width<0.2 (95% interval of every policy's rate), or never",
        PRESENTATION,
    )
    judge: JudgeKind = setting(
        JudgeKind.AUTO,
        "who judges: person (by keys) or scene (the simulated robot's own verdict); auto: "
        "the scene if there is one",
    )
    return_time_s: float = setting(
        2.0,
        "seconds of the way back to the first pose before each trial; 0: stay, and do not check "
        "the pose",
        least=0,
        most=3600,
    )

    def validate(self) -> None:
        """Refuse a stop rule that is none."""
        if self.stop_when.strip() != BETTER:
            parse_stop_rule(self.stop_when)


@dataclass
class RobotEvalConfig(DisplayFlags, Config):
    """Config of trials on a robot: one policy of them, the robot, the task and the run folder."""

    help_groups: ClassVar[Mapping[str, str]] = {
        "Run folder": "output_dir resume job_name",
        "Trials": "task fps seed alpha",
    }
    foreign: ClassVar[tuple[str, ...]] = ("robots", "policies", "family_fields")
    first: ClassVar[str] = (
        "policy.path policy.type policy.device policy.n_action_steps robot.type robot.port "
        "robot.id robot.cameras task fps eval.n_episodes eval.episode_time_s eval.stop_when "
        "alpha seed output_dir resume live display_data config_path"
    )

    policy: PolicyConfig = plugin_section("policies", type_of_path="pretrained")
    robot: RobotConfig = plugin_section("robots")
    eval: TrialSettings = field(default_factory=TrialSettings)
    task: str = setting("", "instruction of the task (default: no instruction)")
    fps: int = setting(30, "actions per second", least=1, most=MOST_FPS)
    seed: int = setting(
        1000,
        "seed of the policy's noise; a simulated scene i uses seed + i",
        least=0,
        most=MOST_SEED,
    )
    alpha: float = setting(
        0.05,
        "probability of a wrong decision of --eval.stop_when=better, below 0.5",
        PRESENTATION,
        least=LEAST_ALPHA,
        below=0.5,
    )
    output_dir: Path | None = setting(
        None,
        "folder of the run; of several policies, the folder of their run folders (default: "
        "outputs/eval/DATE/TIME_ROBOT_POLICY)",
        PRESENTATION,
    )
    job_name: str | None = setting(
        None, "name in the default run folder (default: ROBOT_POLICY)", PRESENTATION
    )
    resume: bool = setting(
        False, "run the missing trials of output_dir, in the same random order", PRESENTATION
    )

    @property
    def max_steps(self) -> int:
        """Actions of a trial that ends by time."""
        return max(1, round(self.eval.episode_time_s * self.fps))

    def validate(self) -> None:
        """Refuse invalid values."""
        super().validate()
        self.eval.validate()
        if self.job_name is not None:
            path_of(f"00-00-00_{self.job_name}", "--job_name")

    def stop_rule(self, n_policies: int) -> str:
        """Return the stop rule in effect: one policy alone cannot be better than another."""
        rule = self.eval.stop_when.strip()
        return NEVER if rule == BETTER and n_policies == 1 else rule
