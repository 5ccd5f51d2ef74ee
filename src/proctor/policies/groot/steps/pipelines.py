"""Processor steps of a new GR00T policy, from its base model's files or a dataset's statistics.

Configs are untyped here: ``groot/config`` imports this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from proctor.features import ACTION, STATE
from proctor.policies.groot.nvidia import ProcessorSettings, statistics_of
from proctor.policies.groot.steps.decode_steps import ActionDecode, ActionUnpack, ActionUnpackV1
from proctor.policies.groot.steps.encode_step import EagleCollate, EagleEncode, VlmEncode
from proctor.policies.groot.steps.relative import relative_settings
from proctor.policies.groot.steps.statistics import flat_stats
from proctor.policies.groot.steps.steps import PackInputs, PackInputsV3
from proctor.policies.lerobot.processors.processors import Normalize, Stats, UsualSteps
from proctor.policies.lerobot.processors.relative_actions import RELATIVE_STATS
from proctor.policies.lerobot.processors.step import ProcessorStep

_TARGET, _CROP = [256, 256], [230, 230]
"""Image sizes of N1.7 where a checkpoint states none."""


def make_steps(config: Any, usual: UsualSteps) -> tuple[PackInputs, VlmEncode, ProcessorStep]:
    """Return the steps that pack, encode and decode.

    The base model's statistics of the embodiment take precedence over the dataset's.
    """
    assert isinstance(usual.normalize, Normalize)
    folder = config.folder
    settings = None if folder is None else folder.settings(config.embodiment_tag)
    known = usual.normalize.stats
    given = {key: known[key] for key in (STATE, ACTION) if key in known}
    if RELATIVE_STATS in known and (settings is None or not settings.raw_stats):
        settings = relative_settings(config, known, settings)
    has_stats = settings is not None and bool(settings.raw_stats)
    stats = _flat(settings) if settings is not None and has_stats else given
    pack = _pack(config, settings, stats)
    decode: ProcessorStep = ActionUnpack(
        env_action_dim=config.action_dim,
        clip_normalized_action=True,
        libero_gripper_action=config.transform is not None,
        stats=stats,
    )
    if settings is not None and has_stats:
        decode = ActionDecode(
            env_action_dim=config.action_dim,
            raw_stats=settings.raw_stats,
            modality_config=settings.modality,
            use_percentiles=settings.use_percentiles,
            use_relative_action=settings.use_relative_action,
            action_decode_transform=config.transform,
        )
        where = f"the statistics of {config.base_model_path}"
        pack.check(where)
        decode.check(where)
    encode = _encode(config, settings)
    encode.check(f"the processors of {config.base_model_path}")
    return pack, encode, decode


def make_n15_steps(
    config: Any, usual: UsualSteps
) -> tuple[PackInputsV3, EagleEncode, EagleCollate, ActionUnpackV1]:
    """Return the steps that pack, encode, collate and unpack.

    A dataset's statistics take precedence over the base model's.
    """
    assert isinstance(usual.normalize, Normalize)
    known = usual.normalize.stats
    stats: Stats = {key: known[key] for key in (STATE, ACTION) if key in known}
    base = statistics_of(config.base_model_path, config.embodiment_tag)
    if not stats and base is not None:
        stats = _tensors(base.flat)
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


def _flat(settings: ProcessorSettings) -> Stats:
    found = flat_stats(
        settings.raw_stats,
        settings.modality,
        settings.where,
        percentiles=settings.use_percentiles,
        relative=settings.use_relative_action,
    )
    return _tensors(found)


def _tensors(flat: Mapping[str, Mapping[str, list[float]]]) -> Stats:
    return {k: {n: torch.tensor(v) for n, v in each.items()} for k, each in flat.items()}


def _pack(config: Any, settings: ProcessorSettings | None, stats: Stats) -> PackInputs:
    if settings is None:
        return PackInputs(
            action_horizon=config.action_horizon,
            valid_action_horizon=config.action_horizon,
            max_state_dim=config.max_state_dim,
            max_action_dim=config.max_action_dim,
            embodiment_tag=config.embodiment_tag,
            stats=stats,
        )
    horizon = settings.max_action_horizon or config.action_horizon
    return PackInputs(
        action_horizon=horizon,
        valid_action_horizon=settings.valid_horizon or horizon,
        video_horizon=settings.video_horizon,
        max_state_dim=config.max_state_dim,
        max_action_dim=config.max_action_dim,
        formalize_language=settings.formalize_language,
        embodiment_tag=config.embodiment_tag,
        embodiment_mapping=dict(settings.embodiments),
        state_dropout_prob=settings.state_dropout_prob,
        clip_outliers=settings.clip_outliers,
        use_percentiles=settings.use_percentiles,
        video_modality_keys=settings.video_keys or None,
        raw_stats=settings.raw_stats,
        modality_config=settings.modality,
        stats=stats,
    )


def _encode(config: Any, settings: ProcessorSettings | None) -> VlmEncode:
    settings = settings or ProcessorSettings("")
    if settings.image_target_size is None:
        settings = replace(settings, image_target_size=_TARGET, image_crop_size=_CROP)
        settings = replace(settings, shortest_image_edge=None, crop_fraction=None)
    return VlmEncode(
        image_crop_size=settings.image_crop_size,
        image_target_size=settings.image_target_size,
        shortest_image_edge=settings.shortest_image_edge,
        crop_fraction=settings.crop_fraction,
        use_albumentations=settings.use_albumentations,
        letter_box_transform=settings.letter_box_transform,
        device=config.device,
        max_length=config.tokenizer_max_length,
    )
