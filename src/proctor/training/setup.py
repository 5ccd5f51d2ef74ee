"""What a training needs, made and checked before anything is written: data, network, optimiser."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from proctor import plugins
from proctor.benchmarks.base import interface_of
from proctor.config.idle import idle_in_training, idle_without_pictures, idle_without_preset
from proctor.config.lerobot_training import of_checkpoint
from proctor.config.training import TrainConfig
from proctor.definition import Use
from proctor.errors import UsageError, did_you_mean
from proctor.features import ACTION, ENVIRONMENT_STATE, STATE, Feature, FeatureKind, Interface
from proctor.policies.control_check import (
    action_range,
    fps_notes,
    range_notes,
    refuse_disjoint,
)
from proctor.policies.fit import check_fit, check_instructed
from proctor.policies.latency import check_lasting
from proctor.policies.lerobot.action_names import following_names, naming_actions
from proctor.policies.lerobot.checkpoint import (
    built_network,
    read_checkpoint,
    read_config,
)
from proctor.policies.lerobot.config import CheckpointConfig, CheckpointPlugin
from proctor.policies.lerobot.location import locate
from proctor.policies.lerobot.pipelines import (
    default_pipelines,
    demonstrated_actions,
)
from proctor.policies.lerobot.pretrained import PretrainedConfig
from proctor.policies.runtime.chunk_policy import Parts
from proctor.policies.runtime.runner import pick_device
from proctor.training.checkpoints import PRETRAINED
from proctor.training.data import Loading, Samples
from proctor.training.draws import Draws
from proctor.training.graph import one_graph
from proctor.training.learner import check_compiler
from proctor.training.material import Material, look_up_material
from proctor.training.normalization import (
    check_resumed,
    dataset_stats,
    require_stats,
    with_stats,
)
from proctor.training.optim import Recipe, groups_of, resolve
from proctor.training.peft import adapted, settings_of
from proctor.training.same_dataset import dataset_record
from proctor.training.sampler import Order
from proctor.training.together import ALONE_HERE, Together


@dataclass(frozen=True)
class Setup:
    """All that stays as it is while a training runs, but for the weights inside ``parts``."""

    config: TrainConfig
    parts: Parts
    recipe: Recipe
    device: torch.device
    samples: Samples
    order: Order
    held_out: tuple[Samples, Order] | None
    """What the loss is watched on, beside what is trained on."""
    dataset: dict[str, Any]
    """The identity of the dataset, as train.json keeps it."""
    together: Together = ALONE_HERE

    def fill_caches(self, told: Callable[[str, int, int], None]) -> None:
        """Decode what a cache is to keep, before any process waits for a picture of it.

        Raises:
            UsageError: the dataset cannot be read, or the cache not be written.
        """
        self.samples.fill_cache(told)
        if self.held_out is not None:
            self.held_out[0].fill_cache(told)

    def close(self) -> None:
        """Let go of the datasets."""
        self.samples.close()
        if self.held_out is not None:
            self.held_out[0].close()

    @property
    def draws(self) -> Draws:
        """All that is random."""
        return Draws(self.config.seed, self.together.share)

    @property
    def loading(self) -> Loading:
        """How batches are read: numbers lie in memory, so processes are for pictures only.

        A stream has one: it fetches and drops files for itself.
        """
        config = self.config
        processes = config.num_workers if self.parts.config.cameras else 0
        return Loading(
            processes=min(1, config.num_workers) if config.dataset.streaming else processes,
            ahead=config.prefetch_factor,
            start_method=config.dataloader_multiprocessing_context.value,
        )


def prepare(
    config: TrainConfig, resumed: Path | None = None, together: Together = ALONE_HERE
) -> Setup:
    """Make everything; ``resumed`` is the checkpoint to go on from.

    Raises:
        UsageError: what cannot be, before anything is written.
    """
    said = (*config.notes, *idle_in_training(config))
    together.check(config.parallelism)
    device = together.device(pick_device(_asked_device(config)))
    check_compiler(config.accelerator.compile, device)
    material = look_up_material(config)
    dataset, about_dataset = dataset_record(material, resumed)
    parts = _parts(config, material, device, resumed)
    if parts.adapter is not None:
        config = replace(config, peft=settings_of(parts.adapter))
    parts.network.equip(parts.preprocessor.steps)  # refuses steps that it cannot follow
    one_graph(config, parts.network, device, together)  # refuses where it is asked for in vain
    about_control = _check_played(config, parts, material)
    about_texts: list[str] = []
    if parts.config.is_told:
        material.require_words(parts.config.type)
        about_texts = material.check_texts(parts, resumed=resumed is not None)
    preset = parts.config.training_preset() if config.use_policy_training_preset else None
    recipe = resolve(preset, config.optimizer, config.scheduler)
    parts = replace(
        parts,
        notes=(
            *said,
            *about_dataset,
            *about_control,
            *about_texts,
            *parts.notes,
            *_remarks(config, parts),
            *recipe.remarks,
        ),
    )
    groups_of(recipe, parts.network)  # refuses what it cannot be used on
    trained_on, order = material.samples(parts, material.trained_on)
    return Setup(
        config,
        parts,
        recipe,
        device,
        trained_on,
        replace(order, share=together.share),
        material.judged_by(parts) if config.eval_steps else None,
        dataset,
        together,
    )


def _remarks(config: TrainConfig, parts: Parts) -> list[str]:
    """Return what a user should hear of the policy's training and of flags that say nothing."""
    blind = [] if parts.config.cameras else idle_without_pictures(config)
    idle = [*blind, *idle_without_preset(config, parts.config)]
    return [*idle, *parts.network.remarks_on_training(config.steps)]


def _check_played(config: TrainConfig, parts: Parts, material: Material) -> list[str]:
    """Refuse a policy that ``--env`` cannot be played by, before hours are spent on it.

    Returns notes on demonstrations that were recorded otherwise than it is controlled.
    """
    if config.env is None:
        return []
    benchmark = plugins.find_benchmark(config.env.type).maker(config.env)()
    interface, renames = interface_of(benchmark), parts.preprocessor.rename_map
    played = parts.config.made_for(interface, renames, Use.EVALUATION)
    check_fit(played.features, interface, renames)
    if played.is_told:
        check_instructed(played.type, benchmark.name, benchmark.tasks())
    check_lasting(replace(played, latency_steps=config.eval.latency_steps))
    actions = action_range(material.source.stats.get(ACTION, {}))
    if demonstrated_actions(parts.postprocessor) is None:  # a step behind it changes their units
        actions = None
    refuse_disjoint(actions, interface)
    return [*fps_notes(material.source.info.fps, interface), *range_notes(actions, interface)]


def _asked_device(config: TrainConfig) -> str:
    policy = config.policy
    if isinstance(policy, PretrainedConfig):
        return str(policy.overrides.get("device") or "auto")
    return str(getattr(policy, "device", None) or "auto")


def _parts(
    config: TrainConfig, material: Material, device: torch.device, resumed: Path | None
) -> Parts:
    """Return the policy to train: the resumed one, a checkpoint's, or one with new weights."""
    policy, interface = config.policy, material.interface
    base = None
    if resumed is not None:  # its statistics are part of it
        parts = check_resumed(read_checkpoint(resumed / PRETRAINED, {}, interface, Use.TRAINING))
    elif isinstance(policy, PretrainedConfig):
        if config.dataset.inputs is not None:
            raise UsageError(
                "--dataset.inputs is for a new policy: one from a checkpoint looks at what it did "
                "before; leave it out"
            )
        base = locate(policy.path, policy.revision)
        changes, notes = of_checkpoint(policy.overrides, type(read_config(base.folder)[1]))
        parts = read_checkpoint(base.folder, changes, interface, Use.TRAINING)
        parts = replace(parts, notes=(*parts.notes, *notes))
        parts = with_stats(parts, dataset_stats(config, material, parts.preprocessor.rename_map))
        parts = _named(parts, material.action_names)
        require_stats(parts, material)
    else:
        parts = _new_parts(config, material, device)
    parts.network.begin_training()
    parts = adapted(config, parts, base)
    made_for = replace(parts.config, device=device.type, push_to_hub=False)
    if config.parallelism.dp_shard == 1:  # what is spread goes to the device block by block
        parts.network.to(device)
    return replace(parts, config=made_for)


def _new_parts(config: TrainConfig, material: Material, device: torch.device) -> Parts:
    plugin = plugins.find_policy(config.policy.type)
    policy = config.policy
    if not isinstance(plugin, CheckpointPlugin) or not isinstance(policy, CheckpointConfig):
        raise UsageError(f"--policy.type={policy.type} has no weights to train")
    if policy.rename_map:
        raise UsageError("--rename_map is for policies from checkpoints (--policy.path)")
    action = Feature(FeatureKind.ACTION, (material.interface.action.size,), "float32")
    policy = replace(
        policy,
        device=device.type,
        input_features=inputs_of(material.interface, config.dataset.inputs),
        output_features={ACTION: action},
    )
    policy = naming_actions(policy, material.action_names)
    policy.validate()
    weights = getattr(policy, "pretrained_backbone_weights", None)
    if policy.cameras and weights is not None:
        raise UsageError(
            f"--policy.pretrained_backbone_weights={weights}: there are none here and none are "
            "downloaded; add --policy.pretrained_backbone_weights=null to train the image encoder "
            "from nothing, or start from a checkpoint with --policy.path=DIR"
        )
    stats = dataset_stats(config, material, {})
    before, after = default_pipelines(policy, stats, stats)
    with Draws(config.seed).for_weights():
        network = built_network(plugin, policy)
    network.begin()
    parts = Parts(policy, network, plugin.prefix, before, after)
    require_stats(parts, material)
    return parts


def inputs_of(interface: Interface, asked: list[str] | None) -> dict[str, Feature]:
    """Return what a policy looks at: as ``asked``, or all that a dataset has for it, as LeRobot.

    Raises:
        UsageError: the dataset has no such feature, or none that a policy could look at.
    """
    offered = {
        key: feature
        for key, feature in interface.features.items()
        if feature.kind is FeatureKind.VISUAL or key in (STATE, ENVIRONMENT_STATE)
    }
    for key in asked or ():
        if key not in offered:
            hint = did_you_mean(key, offered) or f" (choose from: {', '.join(offered)})"
            raise UsageError(f"--dataset.inputs: {interface.name} has no {key!r}{hint}")
    return offered if asked is None else {key: offered[key] for key in asked}


def _named(parts: Parts, actions: Sequence[str] | None) -> Parts:
    """Return the parts as they are for actions of other names: grippers are told by them."""
    before, after = following_names(parts.preprocessor, parts.postprocessor, actions)
    config = naming_actions(parts.config, actions)
    return replace(parts, config=config, preprocessor=before, postprocessor=after)
