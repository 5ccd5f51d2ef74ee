"""The fields of GR00T's config that its processor steps depend on. No torch here."""

from __future__ import annotations

from typing import Protocol

from proctor.policies.groot.nvidia import NvidiaFolder


class StepFields(Protocol):
    """A config's fields and properties, for the modules that make steps from them."""

    base_model_path: str | None
    chunk_size: int
    max_state_dim: int
    max_action_dim: int
    embodiment_tag: str
    relative_exclude_joints: list[str]
    relative_poses: list[int]
    action_feature_names: list[str] | None
    tokenizer_max_length: int
    device: str | None

    @property
    def folder(self) -> NvidiaFolder | None:
        """The base model's processor settings."""

    @property
    def action_dim(self) -> int:
        """Length of one action."""

    @property
    def action_horizon(self) -> int:
        """Actions of a chunk."""

    @property
    def transform(self) -> str | None:
        """The transform of decoded actions."""

    @property
    def cameras(self) -> list[str]:
        """The image inputs."""
