"""Processor steps of a new N1.5 policy, from its base model's files or a dataset's statistics."""

from __future__ import annotations

from typing import Protocol

import torch

from proctor.features import ACTION, STATE
from proctor.policies.groot_n15.nvidia import statistics_of
from proctor.policies.groot_n15.steps import (
    ActionUnpackV1,
    EagleCollate,
    EagleEncode,
    PackInputsV3,
)
from proctor.policies.lerobot.processors import Normalize, Stats, UsualSteps


class StepFields(Protocol):
    """Config fields that the steps depend on (``GrootN15Config``)."""

    base_model_path: str | None
    tokenizer_assets_repo: str
    embodiment_tag: str
    max_state_dim: int
    max_action_dim: int
    tokenizer_max_length: int

    @property
    def action_horizon(self) -> int:
        """Actions of a chunk."""

    @property
    def action_dim(self) -> int:
        """Size of an action."""


def make_steps(
    config: StepFields, usual: UsualSteps
) -> tuple[PackInputsV3, EagleEncode, EagleCollate, ActionUnpackV1]:
    """Return the steps that pack, encode, collate and unpack.

    A dataset's statistics take precedence over the base model's.
    """
    assert isinstance(usual.normalize, Normalize)
    known = usual.normalize.stats
    stats: Stats = {key: known[key] for key in (STATE, ACTION) if key in known}
    if not stats:
        stats = _of_base_model(config)
    pack = PackInputsV3(
        action_horizon=config.action_horizon,
        max_state_dim=config.max_state_dim,
        max_action_dim=config.max_action_dim,
        embodiment_tag=config.embodiment_tag,
        stats=stats,
    )
    assets = config.tokenizer_assets_repo
    encode = EagleEncode(tokenizer_assets_repo=assets, max_length=config.tokenizer_max_length)
    unpack = ActionUnpackV1(env_action_dim=config.action_dim, stats=stats)
    return pack, encode, EagleCollate(tokenizer_assets_repo=assets), unpack


def _of_base_model(config: StepFields) -> Stats:
    found = statistics_of(config.base_model_path, config.embodiment_tag)
    if found is None:
        return {}
    return {
        key: {name: torch.tensor(values) for name, values in each.items()}
        for key, each in found.flat.items()
    }
