"""Config and plug-in of TD-MPC (Hansen et al., 2022), in its offline variant FOWM (Feng, 2023).

Temporal Difference Learning for Model Predictive Control learns a latent world model and plans in
it with the cross-entropy method (CEM). The world model is in world.py, planning and losses are in
network.py. No torch here: `--help` reads configs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from proctor.errors import UsageError
from proctor.features import NormMode
from proctor.policies.lerobot.config.config import (
    CheckpointConfig,
    CheckpointPlugin,
    setting,
    training_setting,
)
from proctor.policies.lerobot.config.presets import SampleWindows, TrainingPreset, constant_preset
from proctor.policies.lerobot.config.shared_fields import normalization, shared
from proctor.policies.lerobot.fresh import make_fresh
from proctor.policies.lerobot.processors.limits import (
    WIDTH,
    Limits,
    check_one_observation,
    require_inputs,
    up_to,
)

_MOST_DRAWN = 10**8
"""Random numbers that one inference may draw: 0.4 GB."""
SMALLEST_IMAGE = 39
"""Pixels of a side: four unpadded convolutions reduce it to one."""


@dataclass
class TdMpcConfig(CheckpointConfig):
    """TD-MPC's fields, in LeRobot's order and with LeRobot 0.6's defaults."""

    help_groups: ClassVar[Mapping[str, str]] = {
        "Observations and actions": "n_action_repeats",
        "Planning": "use_mpc cem_iterations max_std min_std n_gaussian_samples n_pi_samples "
        "uncertainty_regularizer_coeff n_elites elite_weighting_temperature "
        "gaussian_mean_momentum",
    }

    type: str = "tdmpc"
    n_action_repeats: int = setting(
        2, "action repeat: times that each action is executed", up_to(1000)
    )
    horizon: int = setting(5, "planning horizon, in steps", up_to(1000))
    n_action_steps: int = setting(
        1,
        "actions of a plan executed before the next inference; above 1: no action repeat",
        up_to(1000),
    )
    normalization_mapping: dict[str, NormMode] = normalization(
        VISUAL=NormMode.IDENTITY,
        STATE=NormMode.IDENTITY,
        ENV=NormMode.IDENTITY,
        ACTION=NormMode.MIN_MAX,
    )
    image_encoder_hidden_dim: int = setting(32, "channels of the image encoder", WIDTH)
    state_encoder_hidden_dim: int = setting(256, "width of the state encoder", WIDTH)
    latent_dim: int = setting(50, "dimension of the latent state", WIDTH)
    q_ensemble_size: int = setting(5, "number of Q-functions in the ensemble", up_to(100))
    mlp_dim: int = setting(512, "width of the world model's MLPs", WIDTH)
    discount: float = setting(0.9, "discount factor of returns, 0 to 1")
    use_mpc: bool = setting(
        True, "plan with the cross-entropy method (CEM); false: use the learned policy's actions"
    )
    cem_iterations: int = setting(6, "CEM iterations per plan", up_to(1000))
    max_std: float = setting(2.0, "maximum standard deviation of sampled actions")
    min_std: float = setting(0.05, "minimum standard deviation of sampled actions")
    n_gaussian_samples: int = setting(
        512, "action sequences sampled per CEM iteration", up_to(100_000)
    )
    n_pi_samples: int = setting(
        51,
        "action sequences of the learned policy added to every CEM iteration",
        Limits(0, 100_000),
    )
    uncertainty_regularizer_coeff: float = setting(
        1.0, "coefficient of the penalty for disagreement of the Q-functions"
    )
    n_elites: int = setting(
        50, "elites: best action sequences that the next CEM iteration is fitted to", up_to(100_000)
    )
    elite_weighting_temperature: float = setting(
        0.5, "softmax temperature that weights elites by their value"
    )
    gaussian_mean_momentum: float = setting(
        0.1, "momentum of the sampling mean between CEM iterations"
    )
    max_random_shift_ratio: float = training_setting(
        0.0476, "augmentation: maximum random shift, as a fraction of the image's side"
    )
    reward_coeff: float = training_setting(0.5, "weight of the reward loss")
    expectile_weight: float = training_setting(0.9, "expectile of the value loss, 0.5 to 1")
    value_coeff: float = training_setting(0.1, "weight of the value losses")
    consistency_coeff: float = training_setting(20.0, "weight of the latent consistency loss")
    advantage_scaling: float = training_setting(
        3.0, "scale of the advantages before the exponential, in the policy loss"
    )
    pi_coeff: float = training_setting(0.5, "weight of the policy loss")
    temporal_decay_coeff: float = training_setting(
        0.5, "decay factor of the loss weights per step of the horizon"
    )
    target_model_momentum: float = training_setting(
        0.995, "momentum of the target model's moving average"
    )
    optimizer_lr: float = shared("optimizer_lr", 3e-4)

    @property
    def replan_steps(self) -> int:
        """Actions executed before the next inference: one repeated, or the first of a plan."""
        return max(self.n_action_repeats, self.n_action_steps)

    @property
    def is_stateful(self) -> bool:
        """Whether an episode keeps state: planning starts from the last plan."""
        return self.use_mpc

    @property
    def n_plans(self) -> int:
        """Plans evaluated per CEM iteration."""
        return self.n_gaussian_samples + self.n_pi_samples

    def samples(self) -> SampleWindows:
        """Return a horizon of actions and rewards, and one observation more."""
        steps = range(self.horizon)
        return SampleWindows(steps, observation_steps=range(self.horizon + 1), reward_steps=steps)

    def training_preset(self) -> TrainingPreset:
        """Return Adam with a constant learning rate."""
        return constant_preset("adam", self.optimizer_lr)

    def validate(self) -> None:
        """Check TD-MPC's rules too: inputs, executed actions, and the size of the search."""
        super().validate()
        self._validate_inputs()
        if self.normalization_mapping.get("ACTION") is not NormMode.MIN_MAX:
            raise UsageError(
                "TD-MPC plans actions in [-1, 1]: normalization_mapping needs ACTION: MIN_MAX",
                code="policy.conflict",
            )
        if self.n_action_steps > 1:
            if self.n_action_repeats != 1:
                raise UsageError(
                    f"n_action_steps is {self.n_action_steps}: add --policy.n_action_repeats=1",
                    code="policy.conflict",
                )
            if not self.use_mpc:
                raise UsageError(
                    f"n_action_steps is {self.n_action_steps}: above 1 needs use_mpc",
                    code="policy.conflict",
                )
            if self.n_action_steps > self.horizon:
                raise UsageError(
                    f"n_action_steps is {self.n_action_steps} (choose 1-{self.horizon}, the "
                    "horizon)",
                    code="policy.out-of-range",
                )
        self._validate_search()

    def _validate_inputs(self) -> None:
        check_one_observation(self)
        require_inputs(self, state=True)
        if len(self.cameras) > 1:
            raise UsageError(
                f"TD-MPC uses at most one camera, not {', '.join(self.cameras)} (choose one for "
                "training with --dataset.inputs)",
                code="policy.too-many-inputs",
            )
        for key in self.cameras:
            height, width = self.input_features[key].shape[:2]
            if height != width or height < SMALLEST_IMAGE:
                raise UsageError(
                    f"{key} is {height}x{width}: TD-MPC needs square images of at least "
                    f"{SMALLEST_IMAGE} pixels (resize for training with --dataset.image_size)",
                    code="policy.image-size-mismatch",
                )

    def _validate_search(self) -> None:
        if self.n_elites > self.n_plans:
            raise UsageError(
                f"n_elites is {self.n_elites}, but an iteration has only {self.n_plans} plans",
                code="policy.out-of-range",
            )
        if not 0 <= self.min_std <= self.max_std:
            raise UsageError(
                f"min_std is {self.min_std} and max_std {self.max_std}, "
                "expected 0 <= min_std <= max_std",
                code="policy.out-of-range",
            )
        drawn = self.cem_iterations * (self.horizon + 1) * self.n_plans * self.action_dim
        if drawn > _MOST_DRAWN:
            raise UsageError(
                f"planning with {self.cem_iterations} iterations, {self.n_plans} plans and "
                f"{self.horizon} steps samples {drawn} numbers (at most {_MOST_DRAWN})",
                code="policy.out-of-range",
            )


PLUGIN = CheckpointPlugin(
    config=TdMpcConfig,
    summary="TD-MPC, untrained (trained: --policy.path)",
    network="proctor.policies.tdmpc.network:TdMpc",
    prefix="",
    signature_fields=frozenset({"cem_iterations", "n_gaussian_samples"}),
    make=make_fresh,
)
