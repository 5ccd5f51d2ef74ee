"""Builds and checks dataset, network and optimiser before a training writes anything."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from proctor import plugins
from proctor.benchmarks.base import interface_of
from proctor.config.flags.unused_flags import (
    unused_in_training,
    unused_without_images,
    unused_without_preset,
)
from proctor.config.lerobot.training import checkpoint_overrides
from proctor.config.sections.training import StartMethod
from proctor.config.training import TrainConfig
from proctor.datasets.cache_settings import CacheKind
from proctor.errors import UsageError, did_you_mean
from proctor.features import ACTION, ENVIRONMENT_STATE, STATE, Feature, FeatureKind, Interface
from proctor.fingerprint import ConfigUse
from proctor.policies.base import PolicyConfig
from proctor.policies.compatibility import check_compatible, check_instructions, source_key
from proctor.policies.control_check import (
    action_range,
    fps_notes,
    range_notes,
    refuse_disjoint,
)
from proctor.policies.latency import check_config_latency
from proctor.policies.lerobot.checkpoint.checkpoint import (
    build_network,
    read_checkpoint,
    read_config,
)
from proctor.policies.lerobot.checkpoint.location import locate
from proctor.policies.lerobot.checkpoint.pretrained import PretrainedConfig
from proctor.policies.lerobot.config.config import CheckpointConfig, CheckpointPlugin
from proctor.policies.lerobot.config.families import REWARD_MODELS
from proctor.policies.lerobot.processors.pipelines import action_stats, default_pipelines
from proctor.policies.lerobot.processors.relative_actions import (
    RELATIVE_STATS,
    pipelines_with_action_names,
    with_action_names,
)
from proctor.policies.runtime.chunk_policy import LoadedCheckpoint
from proctor.policies.runtime.network import ImageRegion
from proctor.policies.runtime.runner import pick_device
from proctor.runs.training import TrainingDataset
from proctor.training.checkpoints.saving import PRETRAINED
from proctor.training.checkpoints.trained_episodes import TrainedEpisodes, base_episodes
from proctor.training.checkpoints.trained_starts import earlier_starts, episode_starts
from proctor.training.data.dataset_selection import DatasetSelection, FrameCounts, select_dataset
from proctor.training.data.device_samples import DeviceSamples, Samples, place_on_device
from proctor.training.data.loading import Batch, LoaderSettings, batches, start_fork_server
from proctor.training.data.normalization import (
    check_resumed_normalization,
    dataset_stats,
    require_stats,
    with_stats,
)
from proctor.training.data.relative_stats import relative_action_stats
from proctor.training.data.same_dataset import training_datasets, validated_episodes
from proctor.training.data.sampler import BatchOrder
from proctor.training.data.wordings import TaskWordings, wordings_notes
from proctor.training.distributed import SINGLE_PROCESS, DistributedContext
from proctor.training.optim.graph import uses_cuda_graph
from proctor.training.optim.learner import check_compiler
from proctor.training.optim.optimizers import (
    OptimizationSettings,
    own_rate_notes,
    param_groups,
    resolve,
)
from proctor.training.peft import adapter_settings, add_adapter
from proctor.training.rng import RngStreams


@dataclass(frozen=True)
class TrainingSetup:
    """The fixed parts of a training; only the weights inside ``parts`` change."""

    config: TrainConfig
    parts: LoadedCheckpoint
    optimization: OptimizationSettings
    device: torch.device
    samples: Samples
    order: BatchOrder
    held_out: tuple[Samples, BatchOrder] | None
    """Samples and batch order of the validation loss; None without --eval_steps."""
    datasets: tuple[TrainingDataset, ...]
    """The training's datasets, as saved in train.json; the last one is that of this session."""
    frame_counts: FrameCounts
    trained: TrainedEpisodes
    """What its checkpoints have been trained on."""
    trained_starts: bytes
    """The starts that trained the policy, for its checkpoints (``proctor.trained_starts``)."""
    distributed: DistributedContext = SINGLE_PROCESS

    def fill_caches(self, on_progress: Callable[[str, int, int], None]) -> None:
        """Decode the cached frames, before the first training step."""
        self.samples.fill_cache(on_progress)
        if self.held_out is not None:
            self.held_out[0].fill_cache(on_progress)

    def batches(self, steps: range) -> Generator[Batch, None, None]:
        """Return the batches of ``steps``, on the device; see ``data.batches``."""
        return self._batches(self.samples, self.order, steps, self.loading)

    def validation_batches(self) -> Generator[Batch, None, None]:
        """Return the batches of the validation loss, on the device."""
        assert self.held_out is not None
        samples, order = self.held_out
        loading = replace(self.loading, processes=0)
        return self._batches(samples, order, range(order.batches_per_epoch), loading)

    def _batches(
        self, samples: Samples, order: BatchOrder, steps: range, loading: LoaderSettings
    ) -> Generator[Batch, None, None]:
        if isinstance(samples, DeviceSamples):
            return samples.batches(order, steps)
        return batches(samples, order, steps, loading, self.device)

    def close(self) -> None:
        """Close the datasets."""
        self.samples.close()
        if self.held_out is not None:
            self.held_out[0].close()

    @property
    def rng(self) -> RngStreams:
        """The random number streams of this training."""
        return RngStreams(self.config.seed, self.distributed.share)

    @property
    def loading(self) -> LoaderSettings:
        """Settings of the data loader. Without cameras it needs no worker processes.

        A stream has at most one, since each process would fetch files for itself.
        """
        config = self.config
        processes = config.num_workers if self.parts.config.cameras else 0
        return LoaderSettings(
            processes=min(1, config.num_workers) if config.dataset.streaming else processes,
            prefetch_factor=config.prefetch_factor,
            start_method=config.dataloader_multiprocessing_context.value,
        )


def prepare(
    config: TrainConfig,
    resumed: Path | None = None,
    distributed: DistributedContext = SINGLE_PROCESS,
) -> TrainingSetup:
    """Build and check everything; ``resumed`` is the checkpoint to resume from."""
    notes = (*config.notes, *unused_in_training(config))
    distributed.check_parallelism(config.parallelism)
    device = distributed.device(pick_device(_requested_device(config)))
    check_compiler(config.accelerator.compile, device)
    is_forked = config.dataloader_multiprocessing_context is StartMethod.FORKSERVER
    if config.num_workers and is_forked and config.dataset.cache is not CacheKind.DEVICE:
        start_fork_server()
    selection = select_dataset(config)
    datasets, dataset_notes = training_datasets(selection, resumed)
    selection.require_episodes()
    trained = base_episodes(resumed, None if resumed else _base_folder(config))
    if config.eval_steps:
        selection, validation_notes = validated_episodes(selection, datasets, trained)
        dataset_notes += validation_notes
    parts = _parts(config, selection, device, resumed)
    if parts.adapter is not None:
        config = replace(config, peft=adapter_settings(parts.adapter))
    parts.network.check_preprocessor(parts.preprocessor.steps)  # raises for unsupported steps
    uses_cuda_graph(config, parts.network, device, distributed)  # raises if impossible
    control_notes = _check_benchmark(config, parts, selection)
    text_notes: list[str] = []
    if parts.config.language_conditioned:
        selection.require_instructions(parts.config.type)
        text_notes = selection.check_distinct_instructions(parts, resumed=resumed is not None)
    preset = parts.config.training_preset() if config.use_policy_training_preset else None
    optimization = resolve(preset, config.optimizer, config.scheduler)
    parts = replace(
        parts,
        notes=(
            *notes,
            *dataset_notes,
            *wordings_notes(config, resumed),
            *control_notes,
            *text_notes,
            *parts.notes,
            *_training_notes(config, parts),
            *optimization.notes,
            *own_rate_notes(config.optimizer, optimization.optimizer["type"], parts.network),
        ),
    )
    param_groups(optimization, parts.network)  # raises for unknown groups
    samples, order, held_out = _samples(config, parts, selection, device)
    return TrainingSetup(
        config,
        parts,
        optimization,
        device,
        samples,
        replace(order, share=distributed.share, first_step=datasets[-1].first_step),
        held_out,
        datasets,
        selection.frame_counts(len(order.frames)),
        trained.with_datasets(datasets),
        _trained_starts(config, selection, resumed),
        distributed,
    )


def _trained_starts(
    config: TrainConfig, selection: DatasetSelection, resumed: Path | None
) -> bytes:
    """Return the starts of the training episodes, and those that trained earlier weights."""
    base, source = None, selection.source
    if resumed is not None:
        base = resumed / PRETRAINED
    elif isinstance(config.policy, PretrainedConfig):
        base = locate(config.policy.path, config.policy.revision).folder
    added = episode_starts(source.name, source.episodes.starts, selection.trained_on)
    return earlier_starts(base).merged(added).encode()


def _samples(
    config: TrainConfig, parts: LoadedCheckpoint, selection: DatasetSelection, device: torch.device
) -> tuple[Samples, BatchOrder, tuple[Samples, BatchOrder] | None]:
    """Return the training's samples and their order, and those of the validation loss."""
    wordings, regions = _task_wordings(config, parts), _image_regions(config, parts)
    trained_on, order = selection.samples(parts, selection.trained_on, wordings, regions)
    held_out = selection.validation_samples(parts) if config.eval_steps else None
    loaded = [trained_on] if held_out is None else [trained_on, held_out[0]]
    samples: Sequence[Samples] = loaded
    if config.dataset.cache is CacheKind.DEVICE:
        samples = place_on_device(loaded, device)
    return samples[0], order, None if held_out is None else (samples[1], held_out[1])


def _image_regions(config: TrainConfig, parts: LoadedCheckpoint) -> dict[str, ImageRegion]:
    """Return the parts of images that the network reads, by the dataset's names.

    Image augmentation may move or blur other pixels into them: then whole images are read.
    """
    if config.dataset.image_transforms.enable:
        return {}
    renames = parts.preprocessor.rename_map
    return {source_key(key, renames): r for key, r in parts.network.training_regions().items()}


def _task_wordings(config: TrainConfig, parts: LoadedCheckpoint) -> TaskWordings | None:
    """Return the wordings of training instructions; None: the recorded ones."""
    if not config.dataset.paraphrase_tasks:
        return None
    if not parts.config.language_conditioned:
        raise UsageError(
            f"--dataset.paraphrase_tasks: {parts.config.type} reads no instruction",
            code="flag.conflict",
        )
    return TaskWordings(config.seed)


def _training_notes(config: TrainConfig, parts: LoadedCheckpoint) -> list[str]:
    """Return notes on the policy's training and on flags without effect."""
    unused = [] if parts.config.cameras else unused_without_images(config)
    unused += unused_without_preset(config, parts.config)
    return [*unused, *parts.network.training_notes(config.steps)]


def _check_benchmark(
    config: TrainConfig, parts: LoadedCheckpoint, selection: DatasetSelection
) -> list[str]:
    """Check that the policy can be evaluated on ``--env``, before hours of training.

    Returns notes on demonstrations whose fps or action range differs from the benchmark's.
    """
    if config.env is None:
        return []
    if parts.config.type in REWARD_MODELS:
        raise UsageError(
            f"--env evaluates policies, and a {parts.config.type} does not act; leave it out",
            code="flag.conflict",
        )
    benchmark = plugins.benchmark_maker(config.env)()
    interface, renames = interface_of(benchmark, config.env), parts.preprocessor.rename_map
    played = parts.config.for_interface(interface, renames, ConfigUse.EVALUATION)
    check_compatible(played.features, interface, renames)
    if played.language_conditioned:
        check_instructions(played.type, benchmark.name, benchmark.tasks())
    check_config_latency(replace(played, latency_steps=config.eval.latency_steps))
    actions = action_range(selection.source.stats.get(ACTION, {}))
    if action_stats(parts.postprocessor) is None:  # a later step changes the units
        actions = None
    refuse_disjoint(actions, interface)
    return [*fps_notes(selection.source.info.fps, interface), *range_notes(actions, interface)]


def _requested_device(config: TrainConfig) -> str:
    policy = config.policy
    if isinstance(policy, PretrainedConfig):
        return str(policy.overrides.get("device") or "auto")
    return str(getattr(policy, "device", None) or "auto")


def _parts(
    config: TrainConfig, selection: DatasetSelection, device: torch.device, resumed: Path | None
) -> LoadedCheckpoint:
    """Return the policy to train: resumed, from a checkpoint, or with new weights."""
    policy, interface = config.policy, selection.interface
    base = None
    if resumed is not None:  # keeps the statistics of the checkpoint
        parts = check_resumed_normalization(
            read_checkpoint(
                resumed / PRETRAINED, _kept(policy, resumed), interface, ConfigUse.TRAINING
            )
        )
    elif isinstance(policy, PretrainedConfig):
        if config.dataset.inputs is not None:
            raise UsageError(
                "--dataset.inputs is for a new policy, and a checkpoint's policy keeps its inputs; "
                "leave the flag out",
                code="flag.conflict",
            )
        base = locate(policy.path, policy.revision)
        stated = read_config(base.folder, policy.overrides)[1]
        changes, notes = checkpoint_overrides(policy.overrides, type(stated))
        parts = read_checkpoint(base.folder, changes, interface, ConfigUse.TRAINING)
        parts = replace(parts, notes=(*parts.notes, *notes))
        parts = with_stats(parts, dataset_stats(config, selection, parts.preprocessor.rename_map))
        parts = _named(parts, selection.action_names)
        require_stats(parts, selection)
    else:
        parts = _new_parts(config, selection, device)
    parts.network.begin_training()
    parts = add_adapter(config, parts, base)
    made_for = replace(parts.config, device=device.type, push_to_hub=False)
    if config.parallelism.dp_shard == 1:  # FSDP moves sharded weights block by block
        parts.network.to(device)
    return replace(parts, config=made_for)


def _base_folder(config: TrainConfig) -> Path | None:
    """Return the folder of the policy that the training begins with; None: new weights."""
    policy = config.policy
    if not isinstance(policy, PretrainedConfig):
        return None
    return locate(policy.path, policy.revision).folder


def _kept(policy: PolicyConfig, resumed: Path) -> dict[str, Any]:
    """Return the settings of a resumed training's network that its checkpoint does not hold."""
    given = policy.overrides if isinstance(policy, PretrainedConfig) else {}
    names = type(read_config(resumed / PRETRAINED)[1]).kept_by_resume
    return {name: given[name] for name in names if name in given}


def _new_parts(
    config: TrainConfig, selection: DatasetSelection, device: torch.device
) -> LoadedCheckpoint:
    plugin = plugins.find_policy(config.policy.type)
    policy = config.policy
    if not isinstance(plugin, CheckpointPlugin) or not isinstance(policy, CheckpointConfig):
        raise UsageError(
            f"--policy.type={policy.type} has no weights to train; choose another type",
            code="policy.not-trainable",
        )
    if policy.rename_map:
        raise UsageError(
            "--rename_map needs a policy from a checkpoint (--policy.path)", code="flag.conflict"
        )
    inputs = select_inputs(selection.interface, config.dataset.inputs)
    policy = replace(policy, device=device.type)
    policy = policy.with_features(inputs, selection.interface.action.size)
    policy = with_action_names(policy, selection.action_names)
    policy.validate()
    stats = dataset_stats(config, selection, {})
    if policy.relative_chunks is not None:
        stats[RELATIVE_STATS] = relative_action_stats(selection, policy.relative_chunks)
    before, after = default_pipelines(policy, stats, stats)
    with RngStreams(config.seed).seed_weight_init():
        network = build_network(plugin, policy)
    network.load_pretrained()
    parts = LoadedCheckpoint(policy, network, plugin.prefix, before, after)
    require_stats(parts, selection)
    return parts


def select_inputs(interface: Interface, requested: list[str] | None) -> dict[str, Feature]:
    """Return the policy's input features: ``requested``, or all of the dataset, as LeRobot does."""
    available = {
        key: feature
        for key, feature in interface.features.items()
        if feature.kind is FeatureKind.VISUAL or key in (STATE, ENVIRONMENT_STATE)
    }
    for key in requested or ():
        if key not in available:
            hint = did_you_mean(key, available) or f" (choose from: {', '.join(available)})"
            raise UsageError(
                f"--dataset.inputs: {interface.name} has no {key!r}{hint}",
                code="dataset.missing-column",
            )
    return available if requested is None else {key: available[key] for key in requested}


def _named(parts: LoadedCheckpoint, actions: Sequence[str] | None) -> LoadedCheckpoint:
    """Return the parts with the dataset's action names in config and pipelines."""
    before, after = pipelines_with_action_names(parts.preprocessor, parts.postprocessor, actions)
    config = with_action_names(parts.config, actions)
    return replace(parts, config=config, preprocessor=before, postprocessor=after)
