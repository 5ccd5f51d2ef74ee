"""LeRobot checkpoints of every vintage: read whole or not at all, written so LeRobot loads them.

config.json                                    the policy's type, inputs, sizes
model.safetensors                              weights (before 0.4 also the statistics), or
adapter_config.json, adapter_model.safetensors what an adapter changes of a base policy's
policy_preprocessor.json, policy_postprocessor.json, and *.safetensors beside them (since 0.4)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from proctor.definition import Use
from proctor.errors import MissingExtra, UsageError, did_you_mean
from proctor.machine.files import sha256_of

try:
    import safetensors  # noqa: F401  by what reads weights
    import torch
except ImportError as error:
    raise MissingExtra(error.name or "torch", "torch") from None

from proctor.features import ACTION, Feature, FeatureKind, Interface, NormMode
from proctor.foreign import idle_note
from proctor.policies.fit import check_fit, inputs_from
from proctor.policies.lerobot.adapter import read_weights
from proctor.policies.lerobot.config import (
    CheckpointConfig,
    CheckpointPlugin,
    decode_config,
    is_saved,
)
from proctor.policies.lerobot.families import families, family, named
from proctor.policies.lerobot.location import locate, read_json
from proctor.policies.lerobot.overrides import idle_overrides, override
from proctor.policies.lerobot.processors import (
    Normalize,
    Pipeline,
    Rename,
    Stats,
    Step,
    Tensors,
    ToBatch,
    ToDevice,
    Unnormalize,
)
from proctor.policies.lerobot.step_reader import build_step, check_stats
from proctor.policies.lerobot.weights import Undrawn, fill, read_tensors, split_legacy
from proctor.policies.runtime.chunk_policy import ChunkPolicy, Parts
from proctor.policies.runtime.network import Network

PREPROCESSOR = "policy_preprocessor"
POSTPROCESSOR = "policy_postprocessor"
NEWEST_LEROBOT = "0.6"
MOST_PIPELINE_STEPS = 100
STATE_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}\.safetensors")


def load_policy(
    path: str, revision: str | None, overrides: Mapping[str, Any], interface: Interface
) -> ChunkPolicy:
    """Return the policy of a checkpoint (folder or Hub id), ready to act on ``interface``.

    ``overrides`` are fields of the policy's config given as flags: n_action_steps, device, dtype,
    compile, pad_to, rename_map, or any other.

    Raises:
        UsageError: the checkpoint is not there, not whole, or not of a kind we know.
        SpecMismatch: it does not fit the interface.
    """
    located = locate(path, revision)
    parts = read_checkpoint(located.folder, overrides, interface)
    if located.commit is not None:
        parts = replace(parts, notes=(*parts.notes, f"{path} is at commit {located.commit}"))
    return ChunkPolicy(parts, overrides.get("device") or "auto")


def read_checkpoint(
    folder: Path,
    overrides: Mapping[str, Any] | None = None,
    interface: Interface | None = None,
    use: Use = Use.EVALUATION,
) -> Parts:
    """Read and check everything in ``folder``; the interface is checked before the weights.

    ``overrides`` may hold the flags of ``use``.

    Raises:
        UsageError: what is wrong, in which file.
        SpecMismatch: the policy does not fit ``interface``.
    """
    plugin, config, notes = read_config(folder)
    idle = [f"--policy.{name}" for name in idle_overrides(config, overrides or {}, use)]
    if idle:
        notes.append(idle_note(idle, "how the policy is trained"))
    config = override(config, overrides or {}, use)
    weights = read_weights(folder, use, adapted=config.use_peft)
    tensors = weights.tensors
    pipelines = (PREPROCESSOR, POSTPROCESSOR)
    if any((folder / f"{name}.json").is_file() for name in pipelines):
        pre, post = (read_pipeline(folder, name) for name in pipelines)
    else:
        tensors, inputs, outputs = split_legacy(tensors, config)
        _require_stats(folder, config, inputs, outputs)
        pre, post = default_pipelines(config, inputs, outputs, legacy=True)
    raw = [key for key in config.input_features if pre.lacks_stats(key)]
    raw += [key for key in config.output_features if post.lacks_stats(key)]
    if raw:
        notes.append(f"{folder} has no statistics for {', '.join(raw)}: used as they come")
    pre = pre.renaming(config.rename_map)
    if interface is not None:
        check_fit(config.features, interface, pre.rename_map, use)
    with ThreadPoolExecutor(1) as thread:  # a second for each GB: while the network is made
        files = weights.files | _files_of(folder)
        hashes = thread.submit(lambda: {name: sha256_of(file) for name, file in files.items()})
        with Undrawn():
            network = built_network(plugin, config)
        unused = fill(network, tensors, plugin.prefix, str(weights.file))
    unused = [key for key in unused if not key.endswith("num_batches_tracked")]
    if unused:
        notes.append(f"{weights.file}: {len(unused)} tensors are of no use, such as {unused[0]}")
    told = hashes.result(), tuple(notes)
    return Parts(config, network, plugin.prefix, pre, post, *told, adapter=weights.adapter)


def _files_of(folder: Path) -> dict[str, Path]:
    """Return the other files of a checkpoint by name, once all of them have been read."""
    files = [folder / "config.json"]
    for name in (PREPROCESSOR, POSTPROCESSOR):
        file = folder / f"{name}.json"
        if file.is_file():
            steps = read_json(file).get("steps", [])
            named = [step["state_file"] for step in steps if step.get("state_file") is not None]
            files += [file, *(folder / state for state in named)]
    return {file.name: file for file in files}


def _require_stats(folder: Path, config: CheckpointConfig, inputs: Stats, outputs: Stats) -> None:
    """Refuse a checkpoint whose files of statistics were left behind: it would act on raw numbers.

    Raises:
        UsageError: naming the first feature that is to be normalised by numbers that are not there.
    """
    for features, stats in ((config.input_features, inputs), (config.output_features, outputs)):
        for key, feature in features.items():
            mode = config.normalization_mapping.get(feature.kind.value, NormMode.IDENTITY)
            if mode is not NormMode.IDENTITY and key not in stats:
                raise UsageError(
                    f"{folder} has no {PREPROCESSOR}.json, and its weights hold no statistics to "
                    f"normalise {key} by ({mode.value}): copy the checkpoint's policy_* files too"
                )


def build_network(plugin: CheckpointPlugin, config: CheckpointConfig) -> Network:
    """Build the network of a family, on torch's current default device."""
    network: Network = named(plugin.network)(config)
    return network


def built_network(plugin: CheckpointPlugin, config: CheckpointConfig) -> Network:
    """Build the network that ``config`` describes.

    Raises:
        UsageError: there is none, in the words of the layer that cannot be; or no memory for it.
    """
    try:
        return build_network(plugin, config)
    except (RuntimeError, ValueError, TypeError, ArithmeticError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise UsageError(f"no {config.type} can be built from its config: {reason}") from None


def read_config(folder: Path) -> tuple[CheckpointPlugin, CheckpointConfig, list[str]]:
    """Return what config.json describes, and notes on what we made of it.

    Raises:
        UsageError: no or unreadable config.json, or a policy type that we do not know.
    """
    file = folder / "config.json"
    raw = read_json(file)
    notes = []
    kind = raw.get("type")
    if kind is None:
        known = families()
        matching = [name for name, plugin in known.items() if plugin.tell_tale <= raw.keys()]
        if len(matching) != 1:
            raise UsageError(f"{file} states no type (we know {', '.join(known)})")
        kind = matching[0]
        notes.append(f"{file} states no type; its fields are those of {kind}")
    plugin = family(kind) if isinstance(kind, str) else None
    if plugin is None:
        known = families()
        hint = did_you_mean(str(kind), known)
        raise UsageError(f"{file}: unknown type {kind!r} (we know {', '.join(known)}){hint}")
    config = decode_config(raw, _config_class(plugin), str(file))
    if config.unknown:
        notes.append(f"{file}: unknown to us and left alone: {', '.join(config.unknown)}")
    saved = [f.name for f in fields(config) if is_saved(f.name, type(config))]
    missing = [name for name in saved if name not in raw and name not in ("type",)]
    if missing:
        notes.append(f"{file}: not stated, so LeRobot 0.6's defaults: {', '.join(missing)}")
    return plugin, config, notes


def _config_class(plugin: CheckpointPlugin) -> type[CheckpointConfig]:
    assert issubclass(plugin.config, CheckpointConfig)
    return plugin.config


def read_pipeline(folder: Path, name: str) -> Pipeline:
    """Return the pipeline of ``<name>.json`` with its statistics.

    Raises:
        UsageError: a step that we do not know, or statistics that are missing or NaN.
    """
    file = folder / f"{name}.json"
    raw = read_json(file)
    listed = raw.get("steps", [])
    if not isinstance(listed, list) or len(listed) > MOST_PIPELINE_STEPS:
        raise UsageError(f"{file}: steps are no list of at most {MOST_PIPELINE_STEPS}")
    steps = []
    for index, step in enumerate(listed):
        state = _state_of(step, folder, f"{file} step {index}")
        steps.append(build_step(step, state, f"{file} step {index}"))
    return Pipeline(str(raw.get("name", name)), tuple(steps))


def _state_of(step: Any, folder: Path, where: str) -> Tensors:
    """Return the numbers in a step's state file, which must lie beside the pipeline."""
    state_file = step.get("state_file") if isinstance(step, dict) else None
    if state_file is None:
        return {}
    if not isinstance(state_file, str) or not STATE_FILE.fullmatch(state_file):
        raise UsageError(f"{where}: state_file {state_file!r} is not the name of a file beside it")
    return read_tensors(folder / state_file)


def default_pipelines(
    config: CheckpointConfig, inputs: Stats, outputs: Stats, *, legacy: bool = False
) -> tuple[Pipeline, Pipeline]:
    """Return the steps that LeRobot gives ACT and Diffusion, with these statistics."""
    norm_map, device = config.normalization_mapping, config.device or "cpu"
    everything = {**config.input_features, **config.output_features}
    normalize = Normalize(features=everything, norm_map=norm_map, stats=inputs, adds_eps=legacy)
    unnormalize = Unnormalize(
        features=config.output_features, norm_map=norm_map, stats=outputs, adds_eps=legacy
    )
    for step in (normalize, unnormalize):
        check_stats(step, "the checkpoint's statistics")
    before: tuple[Step, ...] = (Rename(), ToBatch(), ToDevice(device), normalize)
    after: tuple[Step, ...] = (unnormalize, ToDevice("cpu"))
    return Pipeline(PREPROCESSOR, before), Pipeline(POSTPROCESSOR, after)


def fresh_policy(
    plugin: CheckpointPlugin, config: CheckpointConfig, interface: Interface
) -> ChunkPolicy:
    """Return a policy with random weights, always the same ones, that fits ``interface``."""
    if not config.input_features:
        action = Feature(FeatureKind.ACTION, (interface.action.size,), "float32")
        config = replace(
            config, input_features=inputs_from(interface), output_features={ACTION: action}
        )
    config.validate()
    check_fit(config.features, interface, config.rename_map or {})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = built_network(plugin, config)
    pre, post = default_pipelines(config, {}, {})
    pre = pre.renaming(config.rename_map)
    parts = Parts(config, network, plugin.prefix, pre, post)
    return ChunkPolicy(parts, config.device or "auto")
