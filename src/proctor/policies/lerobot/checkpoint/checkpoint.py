"""Read LeRobot checkpoints of all versions, completely checked before use.

config.json                                    the policy's type, inputs, sizes
model.safetensors                              weights (before 0.4 also the statistics), or
adapter_config.json, adapter_model.safetensors a LoRA adapter of a base policy
policy_preprocessor.json, policy_postprocessor.json, and *.safetensors with statistics (since 0.4)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from proctor.errors import UsageError
from proctor.fingerprint import ConfigUse
from proctor.system.collection import resume_collection
from proctor.system.platform.optional import LOAD_ERRORS, import_failure

try:
    import safetensors  # noqa: F401  needed to read weights
    import torch
except LOAD_ERRORS as error:
    raise import_failure(error, "torch", "torch") from None

from typing import get_type_hints

import msgspec

from proctor.errors import did_you_mean
from proctor.features import ACTION, ActionSpec, Interface
from proctor.fingerprint import is_flag
from proctor.lerobot_flags import unused_note
from proctor.parsing import parse_text
from proctor.policies.compatibility import (
    EMPTY_CAMERA,
    check_cameras,
    check_compatible,
    default_inputs,
    source_key,
)
from proctor.policies.control_check import action_range, fps_notes, range_notes
from proctor.policies.lerobot.adapter import BASE, read_weights
from proctor.policies.lerobot.checkpoint.location import locate, read_json
from proctor.policies.lerobot.checkpoint.tensor_file import FileStates, hash_file
from proctor.policies.lerobot.checkpoint.trained_channels import trained_fps
from proctor.policies.lerobot.checkpoint.weights import SkipWeightInit, load_weights, split_legacy
from proctor.policies.lerobot.config.config import (
    CheckpointConfig,
    CheckpointPlugin,
    ConfigT,
    decode_config,
    is_saved,
)
from proctor.policies.lerobot.config.families import (
    REWARD_MODELS,
    SHARED_TYPES,
    families,
    family,
    import_attribute,
    unknown_family,
)
from proctor.policies.lerobot.processors.pipelines import (
    action_stats,
    default_pipelines,
    features_without_stats,
    file_hashes,
    has_pipelines,
    normalization_conflicts,
    pipeline_files,
    read_pipelines,
    require_stats,
    restrict_features,
)
from proctor.policies.runtime.chunk_policy import ChunkPolicy, LoadedCheckpoint
from proctor.policies.runtime.network import Network


def override(
    config: ConfigT, overrides: Mapping[str, Any], use: ConfigUse = ConfigUse.EVALUATION
) -> ConfigT:
    """Return ``config`` with the values of flags, validated again.

    Values may be text as typed ("8", "true", "{a: b}"). Flags that ``use`` does not need, such as
    learning rates in an evaluation, are ignored (see ``idle_overrides``).
    """
    names = [f.name for f in fields(config) if f.name != "type" and is_flag(f.metadata, use)]
    idle = idle_overrides(config, overrides, use)
    for name in overrides:
        if name not in names and name not in idle:
            raise UsageError(
                f"{config.type} has no --policy.{name}{did_you_mean(name, names)}",
                code="flag.unknown",
            )
    hints = get_type_hints(type(config))
    given = {
        name: _from_flag(hints[name], name, value)
        for name, value in overrides.items()
        if name not in idle
    }
    values = msgspec.to_builtins(config) | given
    try:
        changed = replace(msgspec.convert(values, type(config), strict=False))
        changed.validate()
    except (msgspec.ValidationError, ArithmeticError) as error:
        raise UsageError(f"--policy: {error}", code="flag.invalid-value") from None
    return changed


def idle_overrides(
    config: CheckpointConfig, overrides: Mapping[str, Any], use: ConfigUse = ConfigUse.EVALUATION
) -> list[str]:
    """Return the training flags among ``overrides``, which an evaluation ignores."""
    if use is not ConfigUse.EVALUATION:
        return []
    of_training = {f.name for f in fields(config) if f.metadata.get("only") is ConfigUse.TRAINING}
    return [name for name in overrides if name in of_training]


def _from_flag(kind: Any, name: str, value: Any) -> Any:
    """Parse a typed list or map; msgspec converts numbers and booleans."""
    try:
        return parse_text(kind, value) if isinstance(value, str) else value
    except ValueError as bad:
        raise UsageError(
            f"--policy.{name}: {value!r} is not valid YAML or JSON ({bad})",
            code="flag.invalid-value",
        ) from None


resume_collection()  # now: a frozen network would never be freed

NEWEST_LEROBOT = "0.6"
FOLLOWED = "the processors are used, as in LeRobot"


def load_policy(
    path: str, revision: str | None, overrides: Mapping[str, Any], interface: Interface
) -> ChunkPolicy:
    """Return the policy of a checkpoint (folder or Hub id), ready to act on ``interface``.

    ``overrides`` are fields of the policy's config given as flags: n_action_steps, device, dtype,
    compile, pad_to, rename_map, or any other.
    """
    located = locate(path, revision)
    refuse_reward_model(located.folder)
    parts = read_checkpoint(located.folder, overrides, interface)
    actions = action_stats(parts.postprocessor)
    about_control = [
        *fps_notes(trained_fps(located.folder), interface),
        *range_notes(None if actions is None else action_range(actions), interface),
    ]
    parts = replace(parts, notes=(*parts.notes, *about_control))
    if located.commit is not None:
        parts = replace(parts, notes=(*parts.notes, f"{path} is at commit {located.commit}"))
    return ChunkPolicy(parts, overrides.get("device") or "auto")


def config_with_overrides(folder: Path, overrides: Mapping[str, Any]) -> CheckpointConfig:
    """Return a checkpoint's config with the overrides of an evaluation; reads nothing else."""
    return override(read_config(folder, overrides)[1], overrides, ConfigUse.EVALUATION)


def checkpoint_interface(
    path: str, revision: str | None, overrides: Mapping[str, Any]
) -> Interface:
    """Return the inputs of a checkpoint, by the client's names, and its action size.

    Placeholder cameras are left out: the policy would use a black image for them.
    """
    folder = locate(path, revision).folder
    refuse_reward_model(folder)
    _, stated, _ = read_config(folder, overrides)
    config = config_with_overrides(folder, overrides)
    renames = dict(config.rename_map or {})
    if not renames and has_pipelines(folder, config):
        renames = read_pipelines(folder, config, stated)[0].rename_map
    named = {source_key(key, renames): f for key, f in config.input_features.items()}
    features = {key: f for key, f in named.items() if not key.startswith(EMPTY_CAMERA)}
    return Interface("the client", features, ActionSpec(config.features[ACTION].shape[0]))


def read_checkpoint(
    folder: Path,
    overrides: Mapping[str, Any] | None = None,
    interface: Interface | None = None,
    use: ConfigUse = ConfigUse.EVALUATION,
) -> LoadedCheckpoint:
    """Read and check everything in ``folder``; the interface is checked before the weights.

    ``overrides`` may hold the flags of ``use``.
    """
    states = FileStates(folder)
    plugin, stated, notes = read_config(folder, overrides)
    idle = [f"--policy.{name}" for name in idle_overrides(stated, overrides or {}, use)]
    if idle:
        notes.append(unused_note(idle, "it affects training only"))
    config = override(stated, overrides or {}, use)
    weights = read_weights(folder, adapted=config.use_peft)
    tensors = weights.tensors
    if has_pipelines(folder, config):
        pre, post = read_pipelines(folder, config, stated)
    elif config.defines_processors(folder):
        pre, post = default_pipelines(config, {}, {}, legacy_in=folder)
    else:
        tensors, inputs, outputs = split_legacy(tensors, config)
        require_stats(folder, config, inputs, outputs)
        pre, post = default_pipelines(config, inputs, outputs, legacy_in=folder)
    if use is ConfigUse.EVALUATION:  # training uses the dataset's statistics
        if raw := features_without_stats(config, pre, post):
            notes.append(f"{folder} has no statistics for {', '.join(raw)}: not normalised")
        if odd := normalization_conflicts(config, pre, post):
            notes.append(f"{folder}: in config.json {'; '.join(odd)}: {FOLLOWED}")
    pre = pre.with_rename_map(config.rename_map)
    if interface is not None:
        given, config = config, config.for_interface(interface, pre.rename_map, use)
        check_compatible(config.features, interface, pre.rename_map, use)
        kept = {**config.features, **config.output_features}
        pre, post = (restrict_features(pipeline, kept) for pipeline in (pre, post))
        lost = [key for key in given.input_features if key not in config.input_features]
        if lost:
            check_cameras(lost, config.input_features, interface, pre.rename_map)
            notes.append(f"{interface.name} has no {', '.join(lost)}: the policy runs without")
    small = {"config.json": folder / "config.json"} | pipeline_files(folder, config)
    files = weights.files | {name: hash_file(file) for name, file in small.items()}
    with SkipWeightInit():
        network = build_network(plugin, config)
    where, merged = str(weights.file), weights.merging(use)
    unused = load_weights(network, tensors, plugin.prefix, where, merged)
    notes += _unused_weights_notes(config, folder, where, unused)
    states.check(name for name in files if not name.startswith(BASE))
    hashes = {name: found.result() for name, found in files.items()} | file_hashes(pre)
    learning = weights.adapter if use is ConfigUse.TRAINING else None
    return LoadedCheckpoint(
        config, network, plugin.prefix, pre, post, hashes, tuple(notes), adapter=learning
    )


def _unused_weights_notes(
    config: CheckpointConfig, folder: Path, where: str, unused: list[str]
) -> list[str]:
    """Return a note on tensors that the network does not have."""
    unused = [key for key in unused if not key.endswith("num_batches_tracked")]
    if not unused:
        return []
    if config.uses_all_weights:
        raise UsageError(
            f"{folder / 'config.json'} does not describe the network of the weights: "
            f"{len(unused)} tensors are unused, such as {unused[0]}; restore the file",
            code="checkpoint.unused-tensors",
        )
    return [f"{where}: {len(unused)} tensors are unused, such as {unused[0]}"]


def refuse_reward_model(folder: Path) -> None:
    """Refuse a checkpoint that does not act."""
    kind = read_json(folder / "config.json").get("type")
    if isinstance(kind, str) and kind in REWARD_MODELS:
        raise UsageError(
            f"{folder} is a {kind}, which judges images and does not act: use it with "
            "--eval.judge=CHECKPOINT",
            code="policy.reward-model",
        )


def instantiate_network(plugin: CheckpointPlugin, config: CheckpointConfig) -> Network:
    """Instantiate a family's network, on torch's current default device."""
    network: Network = import_attribute(plugin.network)(config)
    return network


def build_network(plugin: CheckpointPlugin, config: CheckpointConfig) -> Network:
    """Build the network that ``config`` describes."""
    try:
        return instantiate_network(plugin, config)
    except (RuntimeError, ValueError, TypeError, ArithmeticError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise UsageError(
            f"cannot build the {config.type} network from its config: {reason}",
            code="policy.cannot-build",
        ) from None


def read_config(
    folder: Path, overrides: Mapping[str, Any] | None = None
) -> tuple[CheckpointPlugin, CheckpointConfig, list[str]]:
    """Return the family and config of config.json, and notes about unknown or missing fields.

    The file of another project's layout becomes a config by the family's reader, which may need
    ``overrides``.
    """
    file = folder / "config.json"
    raw = read_json(file)
    notes = []
    kind = raw.get("type")
    foreign = _read_foreign(folder, raw, overrides or {})
    if foreign is not None:
        return foreign
    if kind is None:
        known = families()
        matching = [name for name, plugin in known.items() if plugin.signature_fields <= raw.keys()]
        if len(matching) != 1:
            raise UsageError(
                f"{file} states no type (known: {', '.join(known)})", code="policy.unknown-type"
            )
        kind = matching[0]
        notes.append(f"{file} states no type; its fields are those of {kind}")
    plugin = family(kind) if isinstance(kind, str) else None
    if plugin is None:
        raise UsageError(f"{file}: {unknown_family(str(kind))}", code="policy.unknown-type")
    config = decode_config(raw, _config_class(plugin), str(file))
    if config.unknown:
        notes.append(f"{file}: unknown fields, ignored: {', '.join(config.unknown)}")
    saved = [f.name for f in fields(config) if is_saved(f.name, type(config))]
    expected = {"type", *config.values_in_old_files}
    missing = [name for name in saved if name not in raw and name not in expected]
    if missing:
        notes.append(f"{file}: missing fields, set to LeRobot 0.6's defaults: {', '.join(missing)}")
    return plugin, config, notes


def _read_foreign(
    folder: Path, raw: Mapping[str, Any], overrides: Mapping[str, Any]
) -> tuple[CheckpointPlugin, CheckpointConfig, list[str]] | None:
    """Return family and config of a folder in another project's layout; None: it is none.

    A file with a type is another's only if two families share the type.
    """
    kind = raw.get("type")
    other = SHARED_TYPES.get(str(kind))
    shared = None if other is None else family(other)
    readers = families().values() if kind is None else [shared]
    for plugin in readers:
        if plugin is None or plugin.foreign is None:
            continue
        found = plugin.foreign(folder, raw, overrides)
        if found is not None:
            config = decode_config(found, _config_class(plugin), str(folder / "config.json"))
            return plugin, config, []
    return None


def _config_class(plugin: CheckpointPlugin) -> type[CheckpointConfig]:
    assert issubclass(plugin.config, CheckpointConfig)
    return plugin.config


def fresh_policy(
    plugin: CheckpointPlugin, config: CheckpointConfig, interface: Interface
) -> ChunkPolicy:
    """Return a policy for ``interface`` with random weights of a fixed seed."""
    if not config.input_features:
        config = config.with_features(default_inputs(interface), interface.action.size)
    config.validate()
    check_compatible(config.features, interface, config.rename_map or {})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = build_network(plugin, config)
    pre, post = default_pipelines(config, {}, {})
    pre = pre.with_rename_map(config.rename_map)
    untrained = (
        f"{config.type} is not trained: its weights are random, so its results say nothing about "
        "trained ones; give a checkpoint with --policy.path=DIR"
    )
    parts = LoadedCheckpoint(config, network, plugin.prefix, pre, post, warnings=(untrained,))
    return ChunkPolicy(parts, config.device or "auto")
