"""TD-MPC, the plug-in: its config and how it is made.

Temporal Difference Learning for Model Predictive Control (Hansen et al., 2022), in the variant that
learns from recordings (FOWM, Feng et al., 2023): a small model of the world, and a search in it for
the actions to play. The model is in world.py, search and losses in network.py; this file stays
light, because `--help` reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from proctor.errors import UsageError
from proctor.features import STATE, Interface, NormMode
from proctor.policies.base import Policy
from proctor.policies.lerobot.config import CheckpointConfig, CheckpointPlugin, of_training
from proctor.policies.lerobot.limits import MOST_WIDTH, check_sizes
from proctor.policies.lerobot.presets import OptimizerSettings, Samples, TrainingPreset

_MOST = {
    "n_action_repeats": 1000,
    "horizon": 1000,
    "n_action_steps": 1000,
    "image_encoder_hidden_dim": MOST_WIDTH,
    "state_encoder_hidden_dim": MOST_WIDTH,
    "latent_dim": MOST_WIDTH,
    "q_ensemble_size": 100,
    "mlp_dim": MOST_WIDTH,
    "cem_iterations": 1000,
    "n_gaussian_samples": 100_000,
    "n_elites": 100_000,
}
_MOST_DRAWN = 10**8
"""Numbers that one query may draw: 0.4 GB of them."""
SMALLEST_IMAGE = 39
"""Pixels of a side: four convolutions without padding leave one of it."""


@dataclass
class TdMpcConfig(CheckpointConfig):
    """TD-MPC's fields as in LeRobot; the defaults are LeRobot 0.6's."""

    type: str = "tdmpc"
    n_action_repeats: int = field(default=2, metadata={"help": "times that an action is played"})
    horizon: int = field(default=5, metadata={"help": "steps that are looked ahead"})
    n_action_steps: int = field(
        default=1,
        metadata={"help": "actions of a plan that are played (more than 1: no repeats)"},
    )
    normalization_mapping: dict[str, NormMode] = field(
        default_factory=lambda: {
            "VISUAL": NormMode.IDENTITY,
            "STATE": NormMode.IDENTITY,
            "ENV": NormMode.IDENTITY,
            "ACTION": NormMode.MIN_MAX,
        },
        metadata=of_training("how each kind of feature is normalised, as {STATE: MIN_MAX}"),
    )
    image_encoder_hidden_dim: int = field(
        default=32, metadata={"help": "channels of the image encoder"}
    )
    state_encoder_hidden_dim: int = field(
        default=256, metadata={"help": "width of the state encoder"}
    )
    latent_dim: int = field(default=50, metadata={"help": "length of a latent state"})
    q_ensemble_size: int = field(default=5, metadata={"help": "estimators of an action's value"})
    mlp_dim: int = field(default=512, metadata={"help": "width of the model of the world"})
    discount: float = field(default=0.9, metadata={"help": "what a step later is worth"})
    use_mpc: bool = field(
        default=True, metadata={"help": "search for actions; false: play the policy's own"}
    )
    cem_iterations: int = field(default=6, metadata={"help": "rounds of the search"})
    max_std: float = field(default=2.0, metadata={"help": "widest spread of what is tried"})
    min_std: float = field(default=0.05, metadata={"help": "narrowest spread of what is tried"})
    n_gaussian_samples: int = field(default=512, metadata={"help": "plans tried in a round"})
    n_pi_samples: int = field(
        default=51, metadata={"help": "plans of the policy's own tried beside them"}
    )
    uncertainty_regularizer_coeff: float = field(
        default=1.0, metadata={"help": "what disagreement of the estimators costs a plan"}
    )
    n_elites: int = field(default=50, metadata={"help": "best plans that the next round is by"})
    elite_weighting_temperature: float = field(
        default=0.5, metadata={"help": "how much more better ones of them count"}
    )
    gaussian_mean_momentum: float = field(
        default=0.1, metadata={"help": "share of its mean that a round keeps"}
    )
    max_random_shift_ratio: float = field(
        default=0.0476, metadata=of_training("images are moved by up to this share of their side")
    )
    reward_coeff: float = field(default=0.5, metadata=of_training("weight of the rewards' loss"))
    expectile_weight: float = field(
        default=0.9, metadata=of_training("how hopeful the values of states are, 0.5 to 1")
    )
    value_coeff: float = field(default=0.1, metadata=of_training("weight of the values' losses"))
    consistency_coeff: float = field(
        default=20.0, metadata=of_training("weight of the loss of predicted latent states")
    )
    advantage_scaling: float = field(
        default=3.0, metadata=of_training("how much more better actions are imitated")
    )
    pi_coeff: float = field(default=0.5, metadata=of_training("weight of the policy's own loss"))
    temporal_decay_coeff: float = field(
        default=0.5, metadata=of_training("what the losses of a step later count")
    )
    target_model_momentum: float = field(
        default=0.995, metadata=of_training("share that the slow copy keeps at an update")
    )
    optimizer_lr: float = field(default=3e-4, metadata=of_training("learning rate"))

    @property
    def replan_steps(self) -> int:
        """One action several times, or the first actions of a plan."""
        return max(self.n_action_repeats, self.n_action_steps)

    @property
    def recalls(self) -> bool:
        """A search begins where the last one ended."""
        return self.use_mpc

    @property
    def n_plans(self) -> int:
        """Plans that a round tries."""
        return self.n_gaussian_samples + self.n_pi_samples

    def samples(self) -> Samples:
        """A horizon of actions and rewards, and the observations around all of them."""
        steps = range(self.horizon)
        return Samples(steps, observation_steps=range(self.horizon + 1), reward_steps=steps)

    def training_preset(self) -> TrainingPreset:
        """Adam, at a constant rate."""
        optimizer = OptimizerSettings(
            type="adam",
            lr=self.optimizer_lr,
            weight_decay=0.0,
            grad_clip_norm=10.0,
            betas=[0.9, 0.999],
            eps=1e-8,
        )
        return TrainingPreset(optimizer)

    def validate(self) -> None:
        """Check TD-MPC's own rules too: what it sees, how it plays, and how much it tries."""
        super().validate()
        check_sizes(self, _MOST)
        self._validate_inputs()
        if self.normalization_mapping.get("ACTION") is not NormMode.MIN_MAX:
            raise UsageError("TD-MPC searches between -1 and 1: it needs ACTION: MIN_MAX")
        if self.n_action_steps > 1:
            if self.n_action_repeats != 1:
                raise UsageError(
                    f"n_action_steps is {self.n_action_steps}: add --policy.n_action_repeats=1"
                )
            if not self.use_mpc:
                raise UsageError(f"n_action_steps is {self.n_action_steps}: that needs use_mpc")
            if self.n_action_steps > self.horizon:
                raise UsageError(
                    f"n_action_steps is {self.n_action_steps} (choose 1-{self.horizon}, the "
                    "horizon)"
                )
        self._validate_search()

    def _validate_inputs(self) -> None:
        if self.n_obs_steps != 1:
            raise UsageError(f"TD-MPC looks at one observation; n_obs_steps is {self.n_obs_steps}")
        if self.state_dim is None:
            raise UsageError(f"TD-MPC needs {STATE} as input")
        if len(self.cameras) > 1:
            raise UsageError(
                f"TD-MPC looks at one camera at most, not at {', '.join(self.cameras)} (a training "
                "chooses with --dataset.inputs)"
            )
        for key in self.cameras:
            height, width = self.input_features[key].shape[:2]
            if height != width or height < SMALLEST_IMAGE:
                raise UsageError(
                    f"{key} is {height}x{width}: TD-MPC sees squares of at least {SMALLEST_IMAGE} "
                    "pixels (a training scales them with --dataset.image_size)"
                )

    def _validate_search(self) -> None:
        if not 0 <= self.n_pi_samples <= 100_000:
            raise UsageError(f"n_pi_samples is {self.n_pi_samples} (choose 0-100000)")
        if self.n_elites > self.n_plans:
            raise UsageError(f"n_elites is {self.n_elites}, and a round tries {self.n_plans}")
        if not 0 <= self.min_std <= self.max_std:
            raise UsageError(f"min_std is {self.min_std}, and max_std {self.max_std}")
        drawn = self.cem_iterations * (self.horizon + 1) * self.n_plans * self.action_dim
        if drawn > _MOST_DRAWN:
            raise UsageError(
                f"a search of {self.cem_iterations} rounds, {self.n_plans} plans and "
                f"{self.horizon} steps draws {drawn} numbers (at most {_MOST_DRAWN})"
            )


def make(config: TdMpcConfig, interface: Interface) -> Policy:
    """Make a TD-MPC with fresh random weights for the interface's camera and state."""
    from proctor.policies.lerobot.checkpoint import fresh_policy

    return fresh_policy(PLUGIN, config, interface)


PLUGIN = CheckpointPlugin(
    config=TdMpcConfig,
    make=make,
    summary="TD-MPC, untrained (trained: --policy.path)",
    network="proctor.policies.tdmpc.network:TdMpc",
    prefix="",
    tell_tale=frozenset({"cem_iterations", "n_gaussian_samples"}),
)
