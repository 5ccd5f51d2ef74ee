"""Checks of a config that GR00T's versions share. No torch here."""

from __future__ import annotations

from typing import Protocol

from proctor.errors import UsageError
from proctor.policies.lerobot.presets import POSE_SIZE


class InputFields(Protocol):
    """Config fields of GR00T's inputs and outputs."""

    n_obs_steps: int
    max_state_dim: int
    max_action_dim: int

    @property
    def state_dim(self) -> int | None:
        """Size of the state; None: no state."""

    @property
    def action_dim(self) -> int:
        """Size of an action."""

    @property
    def cameras(self) -> list[str]:
        """Keys of the images."""


class PoseFields(InputFields, Protocol):
    """Config fields of relative end-effector poses."""

    use_relative_actions: bool
    relative_poses: list[int]


def check_poses(config: PoseFields) -> None:
    """Refuse poses that overlap or do not fit into state and action."""
    starts = sorted(config.relative_poses)
    if starts and not config.use_relative_actions:
        raise UsageError("relative_poses needs use_relative_actions=true", code="flag.conflict")
    ends = [*starts[1:], min(config.state_dim or 0, config.action_dim)]
    for start, end in zip(starts, ends, strict=False):
        if start < 0 or start + POSE_SIZE > end:
            raise UsageError(
                f"relative_poses: {POSE_SIZE} numbers from {start} on do not fit before {end} "
                f"(state {config.state_dim}, action {config.action_dim})",
                code="policy.out-of-range",
            )


def check_inputs(config: InputFields) -> None:
    """Refuse a history, missing inputs, and states or actions that are too long."""
    if config.n_obs_steps != 1:
        raise UsageError(
            f"n_obs_steps is {config.n_obs_steps}: GR00T takes one observation",
            code="policy.one-observation",
        )
    if config.state_dim is None or not config.cameras:
        raise UsageError(
            "GR00T needs a camera and observation.state as input", code="policy.missing-input"
        )
    if config.state_dim > config.max_state_dim or config.action_dim > config.max_action_dim:
        raise UsageError(
            f"state {config.state_dim} and action {config.action_dim} must fit into max_state_dim "
            f"{config.max_state_dim} and max_action_dim {config.max_action_dim}",
            code="policy.state-size-mismatch",
        )
