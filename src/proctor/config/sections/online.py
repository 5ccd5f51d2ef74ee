"""Sections of the config of online learning: the loop, the algorithm and interventions."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar

from proctor.errors import UsageError, did_you_mean
from proctor.fingerprint import NAME_LIST
from proctor.policies.gaussian_actor.config import ACTIVATIONS
from proctor.settings import setting

MOST_ACTORS = 256


class Role(Enum):
    """What one command starts: the learner with its actors, or one of them."""

    BOTH = "both"
    LEARNER = "learner"
    ACTOR = "actor"


class LeRobotFix(Enum):
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

    actors: int = setting(
        1, "actor processes on this machine, each with an environment", least=1, most=MOST_ACTORS
    )
    lockstep: bool = setting(
        False,
        "one update per environment step, in order: repeats give the same bits; false: "
        "updates as fast as the machine allows, as LeRobot does",
    )
    fix: str = setting(
        "",
        "behaviours of LeRobot to mend, comma-separated: "
        f"{', '.join(fix.value for fix in LeRobotFix)} (default: as LeRobot)",
        NAME_LIST,
    )
    reward: RewardSource = setting(
        RewardSource.ENVIRONMENT,
        "reward of a simulator: its own, or success (1 at success, else 0)",
    )
    inputs: list[str] | None = setting(
        None,
        "observations that the policy takes, as [observation.state] (default: all states of "
        "the environment, without images)",
    )
    task: str = setting(
        "", "instruction that is stored with a robot's transitions (default: the benchmark's)"
    )
    memory_gb: float = setting(
        2.0, "replay buffer size in GB above which it is a mapped file on disk", above=0, most=10**6
    )
    write_datasets: bool = setting(
        False,
        "write the replay buffers as datasets (dataset/, dataset_offline/) with every "
        "checkpoint: LeRobot resumes from them, Proctor from its journal",
    )

    @property
    def fixes(self) -> frozenset[LeRobotFix]:
        """The behaviours to mend."""
        names = [name.strip() for name in self.fix.split(",") if name.strip()]
        known = [fix.value for fix in LeRobotFix]
        for name in names:
            if name not in known:
                raise UsageError(
                    f"--rl.fix: {name!r} is not known{did_you_mean(name, known)} "
                    f"(choose {', '.join(known)})",
                    code="flag.invalid-value",
                )
        return frozenset(LeRobotFix(name) for name in names)

    def validate(self) -> None:
        """Refuse settings that contradict each other."""
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

    source: InterventionSource = setting(
        InterventionSource.OFF, "who may take over from the policy during an episode"
    )
    every: int = setting(
        0, "the expert takes over in every n-th episode (default: never by count)", least=0
    )
    below: float | None = setting(
        None,
        "the expert takes over when the critic's value falls below this (default: never by value)",
    )
    after: int = setting(0, "steps of the episode before the expert may take over", least=0)
    steps: int = setting(0, "steps of one takeover (default: to the end of the episode)", least=0)

    def validate(self) -> None:
        """Refuse settings that contradict each other."""
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

    hidden_dims: list[int] = setting([256, 256], "widths of the hidden layers", least=1, most=10**5)
    activate_final: bool = setting(True, "apply normalisation and activation to the last layer too")
    final_activation: str | None = setting(
        None,
        "torch.nn class of the last activation, as Tanh (default: SiLU, as the other layers)",
        choices=tuple(ACTIVATIONS),
    )


OWN_SAC_SETTINGS = ("bc_weight", "bc_gripper_weight", "cuda_graphs")
"""Settings that LeRobot does not know and would refuse."""


@dataclass
class SacSettings:
    """Soft actor-critic (--algorithm.*): LeRobot's fields and defaults, then Proctor's own."""

    help_group: ClassVar[str] = "Algorithm"

    type: str = setting("sac", "the algorithm; only sac", choices=("sac",))
    actor_lr: float = setting(3e-4, "learning rate of the actor", above=0)
    critic_lr: float = setting(3e-4, "learning rate of the critics", above=0)
    temperature_lr: float = setting(3e-4, "learning rate of the entropy temperature", above=0)
    discount: float = setting(0.99, "discount of a step, 0 to 1", least=0, most=1)
    use_backup_entropy: bool = setting(True, "include the entropy in the critics' targets")
    critic_target_update_weight: float = setting(
        0.005, "weight of the critics in the average of their targets", least=0, most=1
    )
    num_critics: int = setting(2, "critics of the ensemble", least=1, most=1000)
    num_subsample_critics: int | None = setting(
        None,
        "critics of a random subset for the target value (default: all critics)",
        least=1,
        most=1000,
    )
    critic_network_kwargs: CriticNetworkSettings = field(default_factory=CriticNetworkSettings)
    discrete_critic_network_kwargs: CriticNetworkSettings = field(
        default_factory=CriticNetworkSettings
    )
    temperature_init: float = setting(1.0, "entropy temperature at the start", above=0)
    target_entropy: float | None = setting(
        None, "entropy that the temperature aims at (default: minus half of the number of actions)"
    )
    utd_ratio: int = setting(
        1, "critic updates per update of the actor (update-to-data)", least=1, most=10_000
    )
    policy_update_freq: int = setting(
        1, "optimiser steps between updates of the actor", least=1, most=10**6
    )
    grad_clip_norm: float = setting(
        40.0, "largest norm of a gradient; larger ones are scaled down", above=0
    )
    use_torch_compile: bool = setting(
        False, "read from LeRobot's configs and ignored: an update is not compiled"
    )
    bc_weight: float = setting(
        0.0,
        "weight of behaviour cloning on demonstrations in the actor's loss",
        least=0,
        most=10**6,
    )
    bc_gripper_weight: float = setting(
        0.0, "weight of behaviour cloning in the gripper critic's loss", least=0, most=10**6
    )
    cuda_graphs: bool = setting(True, "on CUDA, capture an update as one graph")

    def validate(self) -> None:
        """Refuse settings that contradict each other."""
        if self.num_subsample_critics is not None and self.num_subsample_critics > self.num_critics:
            raise UsageError(
                f"--algorithm.num_subsample_critics must be at most {self.num_critics}, got "
                f"{self.num_subsample_critics}",
                code="flag.out-of-range",
            )
        for name in ("critic_network_kwargs", "discrete_critic_network_kwargs"):
            if not getattr(self, name).hidden_dims:
                raise UsageError(
                    f"--algorithm.{name}.hidden_dims is [] (give widths as [256,256])",
                    code="flag.out-of-range",
                )
