"""Sections of the config of online learning: the loop, the algorithm and interventions."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar

from proctor.config.bounds import at_least, between
from proctor.errors import UsageError, did_you_mean
from proctor.fingerprint import NAME_LIST
from proctor.policies.gaussian_actor.config import ACTIVATIONS

MOST_ACTORS = 256


class Role(Enum):
    """What one command starts: the learner with its actors, or one of them."""

    BOTH = "both"
    LEARNER = "learner"
    ACTOR = "actor"


class Fix(Enum):
    """A behaviour of LeRobot's learner that ``--rl.fix`` mends."""

    TRUNCATION = "truncation"
    """The next observation of a truncated step is its own, not the next episode's first."""
    NORMALISATION = "normalisation"
    """Actions of the replay buffers are normalised as those of the policy are."""
    PENALTY = "penalty"
    """The gripper penalty counts in every update, not only in the first ones of several."""
    BATCH = "batch"
    """Without an offline dataset a batch has ``batch_size`` online rows, not half of them."""


class RewardSource(Enum):
    """Which number of a simulator is the reward."""

    ENVIRONMENT = "environment"
    """The benchmark's own reward, dense or sparse."""
    SUCCESS = "success"
    """1 at success, otherwise 0."""


@dataclass
class OnlineSettings:
    """The loop of learner and actors (--rl.*)."""

    help_group: ClassVar[str] = "Online learning"

    actors: int = field(
        default=1, metadata={"help": "actor processes on this machine, each with an environment"}
    )
    lockstep: bool = field(
        default=False,
        metadata={
            "help": "one update per environment step, in order: repeats give the same bits; "
            "false: updates as fast as the machine allows, as LeRobot does"
        },
    )
    fix: str = field(
        default="",
        metadata={
            "help": "behaviours of LeRobot to mend, comma-separated: "
            f"{', '.join(fix.value for fix in Fix)}",
            "default_help": "as LeRobot",
        }
        | NAME_LIST,
    )
    reward: RewardSource = field(
        default=RewardSource.ENVIRONMENT,
        metadata={"help": "reward of a simulator: its own, or success (1 at success, else 0)"},
    )
    inputs: list[str] | None = field(
        default=None,
        metadata={
            "help": "observations that the policy takes, as [observation.state]",
            "default_help": "all states of the environment, without images",
        },
    )
    task: str = field(
        default="",
        metadata={
            "help": "instruction that is stored with a robot's transitions",
            "default_help": "the benchmark's",
        },
    )
    memory_gb: float = field(
        default=2.0,
        metadata={"help": "replay buffer size in GB above which it is a mapped file on disk"},
    )
    write_datasets: bool = field(
        default=False,
        metadata={
            "help": "write the replay buffers as datasets (dataset/, dataset_offline/) with every "
            "checkpoint: LeRobot resumes from them, Proctor from its journal"
        },
    )

    @property
    def fixes(self) -> frozenset[Fix]:
        """The behaviours to mend.

        Raises:
            UsageError: a name is unknown.
        """
        names = [name.strip() for name in self.fix.split(",") if name.strip()]
        known = [fix.value for fix in Fix]
        for name in names:
            if name not in known:
                raise UsageError(
                    f"--rl.fix: {name!r} is not known{did_you_mean(name, known)} "
                    f"(choose {', '.join(known)})",
                    code="flag.invalid-value",
                )
        return frozenset(Fix(name) for name in names)

    def validate(self) -> None:
        """Refuse invalid values.

        Raises:
            UsageError: naming the flag.
        """
        between("rl.actors", self.actors, 1, MOST_ACTORS)
        if not 0 < self.memory_gb <= 10**6:
            raise UsageError(
                f"--rl.memory_gb must be above 0, got {self.memory_gb:g}", code="flag.out-of-range"
            )
        if self.lockstep and self.actors > 1:
            raise UsageError(
                "--rl.lockstep needs one actor: the order of several is not reproducible; leave "
                "out --rl.actors",
                code="flag.conflict",
            )
        _ = self.fixes


class InterventionSource(Enum):
    """Who may take over from the policy."""

    OFF = "off"
    EXPERT = "expert"
    """The benchmark's scripted expert."""
    KEYBOARD = "keyboard"
    GAMEPAD = "gamepad"
    LEADER = "leader"
    """A leader arm or another teleoperator, --teleop.*."""


@dataclass
class InterventionSettings:
    """Who takes over from the policy, and when (--intervention.*)."""

    help_group: ClassVar[str] = "Interventions"

    source: InterventionSource = field(
        default=InterventionSource.OFF,
        metadata={"help": "who may take over from the policy during an episode"},
    )
    every: int = field(
        default=0,
        metadata={
            "help": "the expert takes over in every n-th episode",
            "default_help": "never by count",
        },
    )
    below: float | None = field(
        default=None,
        metadata={
            "help": "the expert takes over when the critic's value falls below this",
            "default_help": "never by value",
        },
    )
    after: int = field(
        default=0, metadata={"help": "steps of the episode before the expert may take over"}
    )
    steps: int = field(
        default=0,
        metadata={"help": "steps of one takeover", "default_help": "to the end of the episode"},
    )

    def validate(self) -> None:
        """Refuse invalid values.

        Raises:
            UsageError: naming the flag.
        """
        for name in ("every", "after", "steps"):
            at_least(f"intervention.{name}", getattr(self, name), 0)
        is_scripted = self.source is InterventionSource.EXPERT
        if is_scripted and not self.every and self.below is None:
            raise UsageError(
                "--intervention.source=expert never takes over: add --intervention.every=N or "
                "--intervention.below=VALUE",
                code="flag.missing",
            )
        changed = self.every or self.below is not None or self.after or self.steps
        if changed and not is_scripted:
            raise UsageError(
                "--intervention.every, below, after and steps are for --intervention.source=expert",
                code="flag.conflict",
            )


@dataclass
class CriticNetworkSettings:
    """Layers of a critic: LeRobot's critic_network_kwargs."""

    help_group: ClassVar[str] = "Algorithm"

    hidden_dims: list[int] = field(
        default_factory=lambda: [256, 256], metadata={"help": "widths of the hidden layers"}
    )
    activate_final: bool = field(
        default=True, metadata={"help": "apply normalisation and activation to the last layer too"}
    )
    final_activation: str | None = field(
        default=None,
        metadata={
            "help": "torch.nn class of the last activation, as Tanh",
            "default_help": "SiLU, as the other layers",
        },
    )


OWN_SAC_SETTINGS = ("bc_weight", "bc_gripper_weight", "cuda_graphs")
"""Settings that LeRobot does not know and would refuse."""


@dataclass
class SacSettings:
    """Soft actor-critic (--algorithm.*): LeRobot's fields and defaults, then Proctor's own."""

    help_group: ClassVar[str] = "Algorithm"

    type: str = field(default="sac", metadata={"help": "the algorithm; only sac"})
    actor_lr: float = field(default=3e-4, metadata={"help": "learning rate of the actor"})
    critic_lr: float = field(default=3e-4, metadata={"help": "learning rate of the critics"})
    temperature_lr: float = field(
        default=3e-4, metadata={"help": "learning rate of the entropy temperature"}
    )
    discount: float = field(default=0.99, metadata={"help": "discount of a step, 0 to 1"})
    use_backup_entropy: bool = field(
        default=True, metadata={"help": "include the entropy in the critics' targets"}
    )
    critic_target_update_weight: float = field(
        default=0.005, metadata={"help": "weight of the critics in the average of their targets"}
    )
    num_critics: int = field(default=2, metadata={"help": "critics of the ensemble"})
    num_subsample_critics: int | None = field(
        default=None,
        metadata={
            "help": "critics of a random subset for the target value",
            "default_help": "all critics",
        },
    )
    critic_network_kwargs: CriticNetworkSettings = field(default_factory=CriticNetworkSettings)
    discrete_critic_network_kwargs: CriticNetworkSettings = field(
        default_factory=CriticNetworkSettings
    )
    temperature_init: float = field(
        default=1.0, metadata={"help": "entropy temperature at the start"}
    )
    target_entropy: float | None = field(
        default=None,
        metadata={
            "help": "entropy that the temperature aims at",
            "default_help": "minus half of the number of actions",
        },
    )
    utd_ratio: int = field(
        default=1, metadata={"help": "critic updates per update of the actor (update-to-data)"}
    )
    policy_update_freq: int = field(
        default=1, metadata={"help": "optimiser steps between updates of the actor"}
    )
    grad_clip_norm: float = field(
        default=40.0, metadata={"help": "largest norm of a gradient; larger ones are scaled down"}
    )
    use_torch_compile: bool = field(
        default=False,
        metadata={"help": "read from LeRobot's configs and ignored: an update is not compiled"},
    )
    bc_weight: float = field(
        default=0.0,
        metadata={"help": "weight of behaviour cloning on demonstrations in the actor's loss"},
    )
    bc_gripper_weight: float = field(
        default=0.0,
        metadata={"help": "weight of behaviour cloning in the gripper critic's loss"},
    )
    cuda_graphs: bool = field(
        default=True, metadata={"help": "on CUDA, capture an update as one graph"}
    )

    def validate(self) -> None:
        """Refuse invalid values.

        Raises:
            UsageError: naming the flag.
        """
        if self.type != "sac":
            raise UsageError(
                f"--algorithm.type={self.type} is not known (choose sac)",
                code="flag.invalid-value",
            )
        for name in ("actor_lr", "critic_lr", "temperature_lr", "grad_clip_norm"):
            if not getattr(self, name) > 0:
                raise UsageError(
                    f"--algorithm.{name} must be above 0, got {getattr(self, name):g}",
                    code="flag.out-of-range",
                )
        for name in ("discount", "critic_target_update_weight"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(
                    f"--algorithm.{name} must be from 0 to 1, got {getattr(self, name):g}",
                    code="flag.out-of-range",
                )
        if not self.temperature_init > 0:
            raise UsageError(
                f"--algorithm.temperature_init must be above 0, got {self.temperature_init:g}",
                code="flag.out-of-range",
            )
        between("algorithm.num_critics", self.num_critics, 1, 1000)
        if self.num_subsample_critics is not None:
            between(
                "algorithm.num_subsample_critics", self.num_subsample_critics, 1, self.num_critics
            )
        between("algorithm.utd_ratio", self.utd_ratio, 1, 10_000)
        between("algorithm.policy_update_freq", self.policy_update_freq, 1, 10**6)
        for name in ("bc_weight", "bc_gripper_weight"):
            if not 0 <= getattr(self, name) <= 10**6:
                raise UsageError(
                    f"--algorithm.{name} must be 0 or above, got {getattr(self, name):g}",
                    code="flag.out-of-range",
                )
        for name in ("critic_network_kwargs", "discrete_critic_network_kwargs"):
            widths = getattr(self, name).hidden_dims
            if not widths or not all(1 <= width <= 10**5 for width in widths):
                raise UsageError(
                    f"--algorithm.{name}.hidden_dims is {widths} (give widths as [256,256])",
                    code="flag.out-of-range",
                )
            final = getattr(self, name).final_activation
            if final is not None and final not in ACTIVATIONS:
                raise UsageError(
                    f"--algorithm.{name}.final_activation is {final!r} (choose "
                    f"{', '.join(ACTIVATIONS)})",
                    code="flag.invalid-value",
                )
