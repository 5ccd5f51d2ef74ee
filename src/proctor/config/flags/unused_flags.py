"""Notes on flags that have no effect because their feature is disabled.

A flag with its default value counts as not set: config files hold every flag.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import MISSING, fields, replace
from typing import Any

from proctor.config.base import RunConfig
from proctor.config.evaluation import EvalConfig
from proctor.config.online_training import OnlineTrainConfig
from proctor.config.recording import RecordConfig
from proctor.config.sections.online import Role
from proctor.config.training import TrainConfig
from proctor.datasets.cache_settings import CacheKind
from proctor.lerobot_flags import unused_note
from proctor.policies.lerobot.checkpoint.pretrained import PretrainedConfig
from proctor.policies.lerobot.config.config import CheckpointConfig
from proctor.policies.scripted.expert import ExpertConfig

UnusedFlags = tuple[list[str], str]
"""Names of flags, and why they have no effect."""


def unused_in_training(config: TrainConfig) -> list[str]:
    """Return a note for every reason why flags of a training have no effect."""
    found = _notes([*_switched_off(config), *_of_playing(config), *_of_saving(config)])
    if config.dataset.eval_split and not config.eval_steps:
        found.append(
            f"--dataset.eval_split={config.dataset.eval_split:g} holds episodes out and no loss is "
            "computed on them: add --eval_steps=N, or leave it out"
        )
    return found


def unused_in_online_training(config: OnlineTrainConfig) -> list[str]:
    """Return a note for every reason why flags of an online training have no effect."""
    found: list[UnusedFlags] = []
    if not config.evaluates_in_env:
        played = [*_changed("eval", config.eval), *_changed("video", config.video)]
        found.append((played, "--env_eval_freq is not set"))
    if not config.wandb.enable:
        found.append((_changed("wandb", config.wandb), "--wandb.enable is not set"))
    if not config.save_checkpoint:
        kept = _set(config, "save_freq", "save_minutes", "keep_last")
        found.append((kept, "--save_checkpoint=false"))
    if config.role is Role.BOTH:
        found.append((_set(config, "learner", "api_key"), "local actors need no address"))
    if not config.dataset.is_given:
        found.append((_set(config, "online_ratio"), "there are no demonstrations"))
    return _notes(found)


def unused_without_images(config: TrainConfig) -> list[str]:
    """Return a note on image flags, for a policy without image inputs."""
    names = ["image_size"] if config.dataset.cache is CacheKind.DEVICE else ["image_size", "cache"]
    asked = [f"dataset.{name}" for name in _set(config.dataset, *names)]
    asked += ["dataset.image_transforms.enable"] * config.dataset.image_transforms.enable
    return _notes([(asked, "the policy has no image inputs")])


def unused_without_preset(config: TrainConfig, policy: CheckpointConfig) -> list[str]:
    """Return a note on preset fields of ``policy``, where the preset is disabled."""
    if config.use_policy_training_preset:
        return []
    given = [f.name for f in fields(policy) if f.name.startswith(("optimizer_", "scheduler_"))]
    if isinstance(config.policy, PretrainedConfig):
        given = [name for name in given if name in config.policy.overrides]
    usual, preset = {f.name: _default(f) for f in fields(policy)}, policy.training_preset()
    said = [  # the network itself uses the others
        f"policy.{name}"
        for name in _set(policy, *given)
        if replace(policy, **{name: usual[name]}).training_preset() != preset
    ]
    return _notes([(said, "--use_policy_training_preset=false leaves it to --optimizer.*")])


def unused_in_run(config: RunConfig) -> list[str]:
    """Return a note for every reason why flags of a run have no effect."""
    found: list[UnusedFlags] = []
    if isinstance(config, EvalConfig):
        found += _of_evaluation(config)
    elif isinstance(config, RecordConfig):
        found += _of_recording(config)
    scripts = getattr(config.env, "expert", None)
    if scripts is not None and not _asks_expert(config):
        found.append((["env.expert"], "no expert acts or labels"))
    if not config.eval.use_async_envs:
        watched = [f"eval.{name}" for name in _set(config.eval, "watchdog_s")]
        found.append((watched, "simulators run in this process (--eval.use_async_envs=false)"))
    return _notes(found)


def _asks_expert(config: RunConfig) -> bool:
    """Return whether the benchmark's scripted experts act or label."""
    labels = isinstance(config, RecordConfig) and config.record.label is not None
    return labels or isinstance(config.policy, ExpertConfig)


def _of_evaluation(config: EvalConfig) -> Iterator[UnusedFlags]:
    if not config.wandb.enable:
        yield _changed("wandb", config.wandb), "--wandb.enable is not set"
    if not config.video.per_task:
        others = [name for name in _changed("video", config.video) if name != "video.episodes"]
        yield others, "--video.episodes=0 films none"
    if not config.live:
        yield _set(config, "live_host", "live_port"), "--live is not set"
    if config.against is None:
        yield _set(config, "alpha"), "it is the level of a test, which --against makes"
    if config.record is None:
        yield _set(config, "record_images"), "--record is not set"
    if config.perturb is None:
        yield _set(config, "perturb_levels"), "--perturb is not set"


def _of_recording(config: RecordConfig) -> Iterator[UnusedFlags]:
    if not config.record.images:
        kept = [f"dataset.{name}" for name in _set(config.dataset, "codec", "video")]
        yield kept, "--record.images=false records no images"
    elif config.dataset.video is False:
        codec = [f"dataset.{name}" for name in _set(config.dataset, "codec")]
        yield codec, "--dataset.video=false stores images in the tables"


def _switched_off(config: TrainConfig) -> Iterator[UnusedFlags]:
    compiling, transforms = config.accelerator.compile, config.dataset.image_transforms
    for section, settings, switch in (
        ("ema", config.ema, "enable"),
        ("accelerator.compile", compiling, "enabled"),
        ("dataset.image_transforms", transforms, "enable"),
        ("wandb", config.wandb, "enable"),
    ):
        if not getattr(settings, switch):
            yield _changed(section, settings), f"--{section}.{switch} is not set"
    if config.dataset.cache is CacheKind.OFF:
        kept = [f"dataset.{name}" for name in _set(config.dataset, "cache_gb", "cache_dir")]
        yield kept, "--dataset.cache is off"
    loaders = ("num_workers", "prefetch_factor", "dataloader_multiprocessing_context")
    if config.dataset.cache is CacheKind.DEVICE:
        yield _set(config, *loaders), "--dataset.cache=device starts no loader process"
    elif not config.num_workers:
        yield _set(config, *loaders[1:]), "--num_workers=0 starts no process"


def _of_playing(config: TrainConfig) -> Iterator[UnusedFlags]:
    evaluation = [*_changed("eval", config.eval), *_changed("video", config.video)]
    if config.env is None:
        yield [*_set(config, "env_eval_freq"), *evaluation], "no --env.type is given to evaluate in"
    elif not config.env_eval_freq:
        yield [*evaluation, "env.type"], "--env_eval_freq=0 evaluates no checkpoint"
    if config.env is None and config.ema.enable:
        averaged = [f"ema.{name}" for name in _set(config.ema, "use_for_eval")]
        yield averaged, "no --env.type is given to evaluate in"


def _of_saving(config: TrainConfig) -> Iterator[UnusedFlags]:
    if not config.save_checkpoint:
        yield (
            _set(config, "save_freq", "save_minutes", "keep_last", "keep_best"),
            "--save_checkpoint=false",
        )
    if not config.eval_steps:
        yield (
            _set(config, "max_eval_samples"),
            "no validation loss is computed without --eval_steps",
        )


def _changed(section: str, settings: Any) -> list[str]:
    """Return the flags of a section that differ from their defaults."""
    names = (f.name for f in fields(settings) if f.init)
    return [f"{section}.{name}" for name in _set(settings, *names)]


def _set(settings: Any, *names: str) -> list[str]:
    """Return the names whose value differs from the default."""
    usual = {f.name: f for f in fields(settings)}
    return [name for name in names if getattr(settings, name) != _default(usual[name])]


def _default(field: Any) -> Any:
    made = field.default_factory is not MISSING
    return field.default_factory() if made else field.default


def _notes(found: Iterable[UnusedFlags]) -> list[str]:
    return [unused_note([f"--{name}" for name in names], why) for names, why in found if names]
