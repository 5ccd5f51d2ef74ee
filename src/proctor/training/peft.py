"""LoRA adapters, inserted by the ``peft`` library: adapters are trained, weights are frozen.

The network keeps its class, its ``loss`` and its ``chunk``; only layers inside it are replaced. So
every policy family can be adapted, and the rest of the training is unchanged. Layer names are those
of LeRobot's policy, in which the network is an attribute (``model``, ``diffusion``).
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
from torch import nn

from proctor.config.sections.peft import ALL_LINEAR, PeftSettings
from proctor.config.training import TrainConfig
from proctor.errors import UsageError, strip_control_codes
from proctor.policies.lerobot.adapter import Adapter, AdapterConfig, adapter_names
from proctor.policies.lerobot.checkpoint.location import CheckpointFolder
from proctor.policies.lerobot.checkpoint.pretrained import PretrainedConfig
from proctor.policies.lerobot.checkpoint.weights import check_tensor
from proctor.policies.runtime.chunk_policy import LoadedCheckpoint
from proctor.policies.runtime.network import Network
from proctor.system.platform.optional import LOAD_ERRORS, import_failure
from proctor.training.rng import RngStreams

_ADAPTABLE = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.MultiheadAttention)
_MOST_NAMED = 12
_FREEZING = ("freeze_", "train_")
"""Prefixes of the policy fields that freeze or train parts of the weights."""


def add_adapter(
    config: TrainConfig, parts: LoadedCheckpoint, base: CheckpointFolder | None
) -> LoadedCheckpoint:
    """Return the parts with an adapter in the network, if requested or part of the checkpoint.

    ``base`` is the checkpoint of --policy.path; None if a training is resumed.
    """
    if (config.peft.active or parts.adapter is not None) and base is not None:
        _refuse_freezing(config)
    if parts.adapter is not None:
        if base is not None and config.peft.active:
            raise UsageError(
                f"--peft.*: {base.folder} is an adapter already; leave the flags out to train it, "
                "or give its base as --policy.path",
                code="flag.conflict",
            )
        _insert(parts, _lora_config_of(parts.adapter), empty=True)
        _load_adapter(parts.network, parts.prefix, parts.adapter)
        return parts
    if not config.peft.active:
        return parts
    assert isinstance(config.policy, PretrainedConfig)
    assert base is not None
    if parts.network.adapter_conflict is not None:
        raise UsageError(
            f"--peft.*: {parts.config.type} cannot be trained by an adapter: "
            f"{parts.network.adapter_conflict}; train it without --peft.*",
            code="policy.not-adaptable",
        )
    lora = _new_lora_config(config.peft, parts.network, parts.prefix)
    with RngStreams(config.seed).seed_weight_init():
        _insert(parts, lora, empty=False)
    # Resolve links such as checkpoints/last, which change later.
    local = base.commit is None
    lora.base_model_name_or_path = str(base.folder.resolve()) if local else config.policy.path
    lora.revision = base.commit
    config_file = _adapter_config(lora)
    adapter = Adapter(msgspec.convert(config_file, AdapterConfig), config_file, {})
    made_from = replace(parts.config, use_peft=True, pretrained_path=lora.base_model_name_or_path)
    return replace(parts, config=made_from, adapter=adapter)


def _refuse_freezing(config: TrainConfig) -> None:
    """Refuse flags that freeze weights, which have no effect with an adapter."""
    assert isinstance(config.policy, PretrainedConfig)
    for name in config.policy.overrides:
        if name.startswith(_FREEZING):
            raise UsageError(
                f"--policy.{name}: with an adapter all of the policy's own weights are frozen; "
                "leave the flag out, and choose the trained layers with --peft.target_modules "
                "(LoRA matrices) and --peft.full_training_modules (whole layers)",
                code="flag.conflict",
            )


def adapter_settings(adapter: Adapter) -> PeftSettings:
    """Return the settings of an existing adapter."""
    found = adapter.config
    begun = found.init_lora_weights
    return PeftSettings(
        target_modules=found.target_modules or adapter.layers,
        full_training_modules=found.modules_to_save,
        init_type=begun if isinstance(begun, str) else None,
        r=found.r,
        lora_alpha=round(found.lora_alpha),
    )


def _library() -> Any:
    try:
        import peft
    except LOAD_ERRORS as error:
        raise import_failure(error, "peft", "peft") from None
    return peft


def _new_lora_config(settings: PeftSettings, network: Network, prefix: str) -> Any:
    """Return peft's config for a new adapter."""
    targets = settings.targets or network.adapter_targets
    if targets is None:
        raise UsageError(
            "--peft.target_modules is missing; name the layers to adapt, such as "
            f"{_adaptable(network)}",
            code="flag.missing",
        )
    given: dict[str, Any] = {"r": settings.rank, "target_modules": targets}
    if settings.lora_alpha is not None:
        given["lora_alpha"] = settings.lora_alpha
    if settings.full_training_modules:
        given["modules_to_save"] = settings.full_training_modules
    if settings.init_type is not None:
        given["init_lora_weights"] = settings.init_type
    # nn.MultiheadAttention never calls its out_proj module, so an adapter there has no effect.
    layers = {f"{prefix}{name}": module for name, module in network.named_modules()}
    matched = [name for name in layers if _matches(name, targets)]
    unused = [name for name in matched if _is_attention_output(name, layers)]
    if len(unused) == len(matched) and targets != ALL_LINEAR:
        raise UsageError(
            f"--peft.target_modules: {targets} matches no layer that can be adapted; choose from: "
            f"{_adaptable(network)}",
            code="policy.unknown-layer",
        )
    if unused:
        given["exclude_modules"] = unused
    return _library().LoraConfig(**given)


def _matches(name: str, targets: str | list[str]) -> bool:
    if isinstance(targets, list):
        return any(name == end or name.endswith(f".{end}") for end in targets)
    return targets == ALL_LINEAR or re.fullmatch(targets, name) is not None


def _is_attention_output(name: str, layers: Mapping[str, nn.Module]) -> bool:
    outer, _, last = name.rpartition(".")
    return last == "out_proj" and isinstance(layers.get(outer), nn.MultiheadAttention)


def _lora_config_of(adapter: Adapter) -> Any:
    """Return peft's config for a loaded adapter, with exactly its own layers as targets."""
    found = adapter.config
    return _library().LoraConfig(
        r=found.r,
        lora_alpha=found.lora_alpha,
        lora_dropout=found.lora_dropout,
        use_rslora=found.use_rslora,
        target_modules="|".join(re.escape(name) for name in adapter.layers),
        modules_to_save=found.modules_to_save,
    )


def _adapter_config(lora: Any) -> dict[str, Any]:
    """Return the content of adapter_config.json as peft writes it, with sorted lists."""
    config = dict(lora.to_dict())
    listed = {name: sorted(value) for name, value in config.items() if isinstance(value, set)}
    return config | listed | {"peft_type": str(lora.peft_type.value), "inference_mode": True}


def _insert(parts: LoadedCheckpoint, lora: Any, *, empty: bool) -> None:
    """Replace layers of the network by adapted ones; ``empty``: weights are loaded later."""
    network, known = parts.network, _adaptable(parts.network)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _library().PeftModel(_named(network, parts.prefix), lora, low_cpu_mem_usage=empty)
    except (ValueError, TypeError) as error:
        reason = strip_control_codes(str(error).partition("\n")[0].rstrip("."), 300)
        what = "--peft.target_modules" if parts.adapter is None else parts.adapter.where
        raise UsageError(
            f"{what}: {reason}; choose from: {known}", code="policy.not-adaptable"
        ) from None
    for module in network.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and not _is_trained(module):
            module.register_forward_pre_hook(_use_stored_statistics)
        inner = getattr(module, "base_layer", None)
        if isinstance(inner, nn.MultiheadAttention):
            _restore_weights_after_use(module, inner)
    saved = adapter_names((name for name, _ in network.named_parameters()), parts.prefix)
    unsaved = [n for n, p in network.named_parameters() if p.requires_grad and n not in saved]
    if unsaved:  # peft adapts embeddings with other matrices
        layer = unsaved[0].partition(".lora_")[0]
        raise UsageError(
            f"--peft.target_modules: {layer} cannot be adapted; choose from: {known}",
            code="policy.not-adaptable",
        )


def _named(network: Network, prefix: str) -> nn.Module:
    """Wrap the network so that its layers have the names of LeRobot's policy."""
    holder: nn.Module = network
    for name in reversed(prefix.split(".")[:-1]):
        outer = nn.Module()
        outer.add_module(name, holder)
        holder = outer
    return holder


def _adaptable(network: Network) -> str:
    """List the last name parts of adaptable layers, the most frequent first."""
    counts: dict[str, int] = {}
    layers = dict(network.named_modules())
    for name, module in layers.items():
        if isinstance(module, _ADAPTABLE) and not _is_attention_output(name, layers):
            last = name.rpartition(".")[2]
            counts[last] = counts.get(last, 0) + 1
    return ", ".join(sorted(counts, key=lambda name: -counts[name])[:_MOST_NAMED])


def _is_trained(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())


def _use_stored_statistics(module: nn.Module, _: Any) -> None:
    """Keep a frozen batch norm in evaluation mode, with the statistics of the base.

    An adapter's checkpoint does not store statistics, so the loaded policy has those of the base.
    """
    module.eval()


def _restore_weights_after_use(adapted_layer: nn.Module, attention: nn.MultiheadAttention) -> None:
    """Restore the weights of an attention layer after every use.

    peft adds the adapter to them and subtracts it again, which changes the last bits each time. A
    resumed training starts with the base's weights and would end with other bits.
    """
    projection = attention.out_proj.get_base_layer()  # type: ignore[operator]
    weights = {(attention, "in_proj_weight"): attention.in_proj_weight}
    weights[projection, "weight"] = projection.weight

    def restored(*_: Any) -> None:
        for (owner, name), weight in weights.items():
            owner.register_parameter(name, weight)

    adapted_layer.register_forward_hook(restored)


def _load_adapter(network: Network, prefix: str, adapter: Adapter) -> None:
    """Load the weights of an adapter into the network."""
    state = network.state_dict()
    names = adapter_names(state, prefix)
    for key, name in names.items():
        check_tensor(name, state[key], adapter.tensors.get(name), adapter.where)
    unused = sorted(adapter.tensors.keys() - set(names.values()))
    if unused:
        raise UsageError(
            f"{adapter.where}: {unused[0]} belongs to no layer of the policy",
            code="checkpoint.unexpected-tensor",
        )
    given = {key: adapter.tensors[name].float() for key, name in names.items()}
    network.load_state_dict(given, strict=False, assign=True)
