"""Config of ``proctor train-online``: LeRobot's TrainRLServerPipelineConfig, and our own flags."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from proctor.config.base import plugin_section
from proctor.config.evaluation import EvalConfig
from proctor.config.sections.env_processors import EnvProcessorSettings
from proctor.config.sections.online import (
    InterventionSettings,
    InterventionSource,
    OnlineSettings,
    Role,
    SacSettings,
)
from proctor.config.sections.training import DatasetLocation
from proctor.config.training import TrainingConfig
from proctor.errors import UsageError
from proctor.fingerprint import (
    API_KEY_VARIABLE,
    PRESENTATION,
    secret_metadata,
)
from proctor.policies.base import PolicyConfig
from proctor.policies.gaussian_actor.config import GaussianActorConfig
from proctor.policies.lerobot.checkpoint.pretrained import PretrainedConfig
from proctor.policies.remote.address import check_api_key
from proctor.robots.base import RobotConfig, TeleoperatorConfig
from proctor.settings import setting
from proctor.system.loopback import LOOPBACK


@dataclass
class DemonstrationSettings(DatasetLocation):
    """The dataset of demonstrations, which fills the offline buffer (--dataset.*)."""

    help_group: ClassVar[str] = "Dataset"

    repo_id: str = setting(
        "", "Hub id of the demonstrations, as user/name (default: no demonstrations)"
    )
    episodes: list[int] | None = setting(None, "episodes to use, as [0,3] (default: all)")

    @property
    def is_given(self) -> bool:
        """Whether there are demonstrations."""
        return bool(self.repo_id) or self.root is not None


@dataclass
class OnlineTrainConfig(TrainingConfig):
    """Config of online learning: policy, environment, algorithm, buffers and run folder."""

    help_groups: ClassVar[Mapping[str, str]] = {
        "Learner and actors": "role learner api_key api_key_file tls_cert tls_key tls",
        "Evaluation": "env_eval_freq",
    }

    first: ClassVar[str] = (
        "env.type env.task policy.type policy.online_steps policy.device dataset.repo_id "
        "dataset.root algorithm.utd_ratio batch_size seed rl.actors rl.lockstep rl.fix rl.inputs "
        "intervention.source env_eval_freq eval.n_episodes output_dir resume config_path role "
        "learner wandb.enable"
    )

    policy: PolicyConfig = plugin_section(
        "policies", type_of_path="pretrained", only=("gaussian_actor",)
    )
    robot: RobotConfig | None = plugin_section("robots", optional=True)
    teleop: TeleoperatorConfig | None = plugin_section("teleoperators", optional=True)
    role: Role = setting(
        Role.BOTH, "start the learner and its actors here, or one of them", PRESENTATION
    )
    learner: str | None = setting(
        None,
        "HOST:PORT of the learner: where an actor connects, where a learner listens "
        "(default: policy.actor_learner_config, 127.0.0.1:50051)",
        PRESENTATION,
    )
    api_key: str | None = setting(
        None,
        "API key between the learner and actors of other machines; other users can read "
        f"command lines, so prefer ${API_KEY_VARIABLE} or api_key_file (required where the "
        "learner listens on another address than 127.0.0.1)",
        secret_metadata(API_KEY_VARIABLE),
        PRESENTATION,
    )
    api_key_file: Path | None = setting(
        None, "file that contains the API key (default: no file)", PRESENTATION
    )
    tls_cert: Path | None = setting(
        None, "TLS certificate file of --role=learner (default: no encryption)", PRESENTATION
    )
    tls_key: Path | None = setting(
        None, "private key file of --tls_cert (default: no encryption)", PRESENTATION
    )
    tls: bool = setting(
        False,
        "whether --role=actor connects with TLS; the learner's certificate must be trusted "
        "by $SSL_CERT_FILE or gRPC's own list",
        PRESENTATION,
    )
    dataset: DemonstrationSettings = field(default_factory=DemonstrationSettings)
    algorithm: SacSettings = field(default_factory=SacSettings)
    rl: OnlineSettings = field(default_factory=OnlineSettings)
    intervention: InterventionSettings = field(default_factory=InterventionSettings)
    processor: EnvProcessorSettings = field(default_factory=EnvProcessorSettings)
    fps: int | None = setting(
        None,
        "environment steps per second of an actor (default: 30 with a robot; a simulator is "
        "not slowed down)",
        least=1,
        most=1000,
    )
    output_dir: Path | None = setting(
        None,
        "folder of the training; of --role=actor: keeps its transitions until the learner "
        "has them (default: outputs/train/DATE/TIME_JOB)",
        PRESENTATION,
    )
    resume: bool = setting(
        False, "continue the training in output_dir, buffers included", PRESENTATION
    )
    seed: int = setting(
        1000,
        "seed of weights, batches, exploration and evaluation episodes",
    )
    batch_size: int = setting(8, "transitions per update")
    online_ratio: float = setting(
        0.5, "share of a batch from the online buffer; the rest: demonstrations", above=0, most=1
    )
    save_minutes: float = setting(
        10.0,
        "minutes without a checkpoint after which an interim one is saved; 0: no interim "
        "checkpoints",
    )
    env_eval_freq: int = setting(
        0,
        "environment steps between evaluations of the deterministic policy, and one at the "
        "end (default: never)",
    )

    @property
    def tls_files(self) -> tuple[Path, Path] | None:
        """Files of the learner's certificate and of its private key; None: no TLS."""
        if self.tls_cert is None or self.tls_key is None:
            return None
        return self.tls_cert, self.tls_key

    def validate(self) -> None:
        """Refuse invalid values."""
        super().validate()
        self.algorithm.validate()
        self.rl.validate()
        self.intervention.validate()
        self.processor.validate()
        self._validate_policy()
        self._validate_environment()
        self._validate_roles()

    def _validate_policy(self) -> None:
        policy = self.policy
        if isinstance(policy, PretrainedConfig):
            return
        if not isinstance(policy, GaussianActorConfig):
            raise UsageError(
                f"--policy.type={policy.type} does not learn online (choose gaussian_actor); "
                "`proctor train` trains it on demonstrations",
                code="policy.not-trainable",
            )
        if self.intervention.below is not None and not policy.has_gripper:
            raise UsageError(
                "--intervention.below needs the value of a gripper critic: set "
                "--policy.num_discrete_actions, or use --intervention.every",
                code="flag.conflict",
            )

    def _validate_environment(self) -> None:
        if (self.env is None) == (self.robot is None):
            raise UsageError(
                "give the environment: --env.type=NAME, or --robot.type=NAME for a robot",
                code="flag.missing" if self.env is None else "flag.conflict",
            )
        source = self.intervention.source
        if source is InterventionSource.LEADER and self.teleop is None:
            raise UsageError(
                "--intervention.source=leader needs a teleoperator: --teleop.type=NAME",
                code="flag.missing",
            )
        if source is InterventionSource.KEYBOARD and self.role is Role.BOTH:
            raise UsageError(
                "--intervention.source=keyboard needs the actor's own terminal: start the learner "
                "with --role=learner, and in another terminal the actor with --role=actor",
                code="flag.conflict",
            )
        if self.robot is not None and (self.env_eval_freq or source is InterventionSource.EXPERT):
            raise UsageError(
                "--env_eval_freq and --intervention.source=expert need a simulator (--env.type)",
                code="flag.conflict",
            )
        if self.evaluates_in_env:
            if not self.save_checkpoint:
                raise UsageError(
                    "--env_eval_freq evaluates checkpoints; leave out --save_checkpoint=false",
                    code="flag.conflict",
                )
            assert self.env is not None
            EvalConfig(PolicyConfig(), self.env, self.eval, video=self.video).validate()

    def _validate_roles(self) -> None:
        check_api_key("--api_key", self.api_key)
        host = "127.0.0.1" if self.learner is None else parse_address(self.learner)[0]
        if self.role is Role.LEARNER and host not in LOOPBACK and self.api_key is None:
            raise UsageError(
                f"a learner on {host} needs an API key, since it accepts transitions from the "
                f"network: set ${API_KEY_VARIABLE} or --api_key_file",
                code="rl.key-missing",
            )
        if (self.tls_cert is None) != (self.tls_key is None):
            raise UsageError("--tls_cert and --tls_key come together", code="flag.missing")
        if self.tls_cert is not None and self.role is not Role.LEARNER:
            raise UsageError(
                "--tls_cert and --tls_key are for --role=learner; an actor has --tls=true",
                code="flag.conflict",
            )
        if self.tls and self.role is not Role.ACTOR:
            raise UsageError(
                "--tls=true is for --role=actor; a learner has --tls_cert and --tls_key",
                code="flag.conflict",
            )
        if self.role is Role.ACTOR and self.resume:
            raise UsageError(
                "--role=actor: the learner tells the actor where to continue; leave out --resume",
                code="flag.conflict",
            )
        if self.role is not Role.BOTH and self.rl.actors > 1:
            raise UsageError(
                "--rl.actors counts the actors of --role=both; start each actor of another "
                "machine with its own command",
                code="flag.conflict",
            )


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of HOST:PORT."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 <= int(port) <= 65535:
        raise UsageError(
            f"--learner={text} is not an address; write HOST:PORT, as 192.168.0.5:50051",
            code="flag.invalid-value",
        )
    return host.removeprefix("[").removesuffix("]"), int(port)
