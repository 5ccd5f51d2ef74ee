"""Adapters (LoRA) in a network, put there by the ``peft`` library: they learn, the weights stay.

The network keeps its class, its ``loss`` and its ``chunk``; layers inside it are replaced. So any
family can be adapted, and nothing else in a training knows of it. Names of layers are those of
LeRobot's policy, in which a network is an attribute (``model``, ``diffusion``).
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
from torch import nn

from proctor.config.peft import ALL_LINEAR, PeftSettings
from proctor.config.training import TrainConfig
from proctor.errors import UsageError, strip_control_codes
from proctor.policies.lerobot.adapter import Adapter, AdapterConfig, adapter_names
from proctor.policies.lerobot.location import CheckpointFolder
from proctor.policies.lerobot.pretrained import PretrainedConfig
from proctor.policies.lerobot.weights import check_tensor
from proctor.policies.runtime.chunk_policy import LoadedCheckpoint
from proctor.policies.runtime.network import Network
from proctor.system.optional import LOAD_ERRORS, import_failure
from proctor.training.rng import RngStreams

_ADAPTABLE = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.MultiheadAttention)
_MOST_NAMED = 12
_FREEZING = ("freeze_", "train_")
"""Begins the names of policies' fields that say which of their weights are learnt."""


def add_adapter(
    config: TrainConfig, parts: LoadedCheckpoint, base: CheckpointFolder | None
) -> LoadedCheckpoint:
    """Return the parts with an adapter in the network, where one is asked for or there already.

    ``base`` is the checkpoint that --policy.path names; None where a training is resumed.

    Raises:
        UsageError: the layers that are to be adapted are not there, or there is an adapter already.
        MissingExtra: peft is not installed.
    """
    if (config.peft.active or parts.adapter is not None) and base is not None:
        _refuse_freezing(config)
    if parts.adapter is not None:
        if base is not None and config.peft.active:
            raise UsageError(
                f"--peft.*: {base.folder} is an adapter, and its training goes on; leave them out, "
                "or give its base as --policy.path",
                code="flag.conflict",
            )
        _put_in(parts, _exactly(parts.adapter), empty=True)
        _fill(parts.network, parts.prefix, parts.adapter)
        return parts
    if not config.peft.active:
        return parts
    assert isinstance(config.policy, PretrainedConfig)
    assert base is not None
    if parts.network.unadaptable is not None:
        raise UsageError(
            f"--peft.*: an adapter of {parts.config.type} cannot hold what it learns: "
            f"{parts.network.unadaptable}; train it whole",
            code="policy.not-adaptable",
        )
    lora = _new(config.peft, parts.network, parts.prefix)
    with RngStreams(config.seed).seed_weight_init():
        _put_in(parts, lora, empty=False)
    # A link such as checkpoints/last names another policy tomorrow.
    local = base.commit is None
    lora.base_model_name_or_path = str(base.folder.resolve()) if local else config.policy.path
    lora.revision = base.commit
    told = _told(lora)
    adapter = Adapter(msgspec.convert(told, AdapterConfig), told, {})
    made_from = replace(parts.config, use_peft=True, pretrained_path=lora.base_model_name_or_path)
    return replace(parts, config=made_from, adapter=adapter)


def _refuse_freezing(config: TrainConfig) -> None:
    """Refuse to say which weights are learnt where none are; in LeRobot that does nothing."""
    assert isinstance(config.policy, PretrainedConfig)
    for name in config.policy.overrides:
        if name.startswith(_FREEZING):
            raise UsageError(
                f"--policy.{name}: with an adapter all of the policy's own weights stay as they "
                "are; leave it out, and say what learns with --peft.target_modules (small "
                "matrices) and --peft.full_training_modules (whole layers)",
                code="flag.conflict",
            )


def adapter_settings(adapter: Adapter) -> PeftSettings:
    """Return the settings that make such an adapter."""
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


def _new(settings: PeftSettings, network: Network, prefix: str) -> Any:
    """Return peft's config of a new adapter."""
    targets = settings.targets or network.adapted
    if targets is None:
        raise UsageError(
            "--peft.target_modules is missing: which layers get an adapter; there are "
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
    # An attention computes its last projection itself: an adapter there would never be asked.
    layers = {f"{prefix}{name}": module for name, module in network.named_modules()}
    meant = [name for name in layers if _is_meant(name, targets)]
    unasked = [name for name in meant if _is_inside(name, layers)]
    if len(unasked) == len(meant) and targets != ALL_LINEAR:
        raise UsageError(
            f"--peft.target_modules: {targets} means no layer that can be adapted; there "
            f"are {_adaptable(network)}",
            code="policy.unknown-layer",
        )
    if unasked:
        given["exclude_modules"] = unasked
    return _library().LoraConfig(**given)


def _is_meant(name: str, targets: str | list[str]) -> bool:
    if isinstance(targets, list):
        return any(name == end or name.endswith(f".{end}") for end in targets)
    return targets == ALL_LINEAR or re.fullmatch(targets, name) is not None


def _is_inside(name: str, layers: Mapping[str, nn.Module]) -> bool:
    outer, _, last = name.rpartition(".")
    return last == "out_proj" and isinstance(layers.get(outer), nn.MultiheadAttention)


def _exactly(adapter: Adapter) -> Any:
    """Return peft's config of an adapter that was read: for its own layers, whatever it says."""
    found = adapter.config
    return _library().LoraConfig(
        r=found.r,
        lora_alpha=found.lora_alpha,
        lora_dropout=found.lora_dropout,
        use_rslora=found.use_rslora,
        target_modules="|".join(re.escape(name) for name in adapter.layers),
        modules_to_save=found.modules_to_save,
    )


def _told(lora: Any) -> dict[str, Any]:
    """Return adapter_config.json as peft writes it, with lists that have an order."""
    said = dict(lora.to_dict())
    listed = {name: sorted(value) for name, value in said.items() if isinstance(value, set)}
    return said | listed | {"peft_type": str(lora.peft_type.value), "inference_mode": True}


def _put_in(parts: LoadedCheckpoint, lora: Any, *, empty: bool) -> None:
    """Replace layers of the network by adapted ones; ``empty``: their weights come later.

    Raises:
        UsageError: in peft's words, what of it cannot be.
    """
    network, known = parts.network, _adaptable(parts.network)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _library().PeftModel(_named(network, parts.prefix), lora, low_cpu_mem_usage=empty)
    except (ValueError, TypeError) as error:
        reason = strip_control_codes(str(error).partition("\n")[0].rstrip("."), 300)
        what = "--peft.target_modules" if parts.adapter is None else parts.adapter.where
        raise UsageError(
            f"{what}: {reason}; there are {known}", code="policy.not-adaptable"
        ) from None
    for module in network.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and not _learns(module):
            module.register_forward_pre_hook(_stay_as_measured)
        inner = getattr(module, "base_layer", None)
        if isinstance(inner, nn.MultiheadAttention):
            _keep_weights(module, inner)
    saved = adapter_names((name for name, _ in network.named_parameters()), parts.prefix)
    lost = [n for n, p in network.named_parameters() if p.requires_grad and n not in saved]
    if lost:  # peft adapts embeddings, too, by other matrices
        layer = lost[0].partition(".lora_")[0]
        raise UsageError(
            f"--peft.target_modules: {layer} cannot be adapted; there are {known}",
            code="policy.not-adaptable",
        )


def _named(network: Network, prefix: str) -> nn.Module:
    """Return a module in which the network has the name that LeRobot's policy has for it."""
    holder: nn.Module = network
    for name in reversed(prefix.split(".")[:-1]):
        outer = nn.Module()
        outer.add_module(name, holder)
        holder = outer
    return holder


def _adaptable(network: Network) -> str:
    """Name the last parts of the names of layers that can be adapted, those there are most of."""
    counts: dict[str, int] = {}
    layers = dict(network.named_modules())
    for name, module in layers.items():
        if isinstance(module, _ADAPTABLE) and not _is_inside(name, layers):
            last = name.rpartition(".")[2]
            counts[last] = counts.get(last, 0) + 1
    return ", ".join(sorted(counts, key=lambda name: -counts[name])[:_MOST_NAMED])


def _learns(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())


def _stay_as_measured(module: nn.Module, _: Any) -> None:
    """Let a normalisation use, and not change, the statistics that the base was trained with.

    An adapter's checkpoint does not hold them: a policy that learns with others is not the one that
    is loaded.
    """
    module.eval()


def _keep_weights(adapted_layer: nn.Module, attention: nn.MultiheadAttention) -> None:
    """Give an attention its own weights back after every use.

    peft adds the adapter to them and subtracts it again, which leaves other last bits each time: a
    resumed training, which begins with the base's, would end with others.
    """
    projection = attention.out_proj.get_base_layer()  # type: ignore[operator]
    weights = {(attention, "in_proj_weight"): attention.in_proj_weight}
    weights[projection, "weight"] = projection.weight

    def restored(*_: Any) -> None:
        for (owner, name), weight in weights.items():
            owner.register_parameter(name, weight)

    adapted_layer.register_forward_hook(restored)


def _fill(network: Network, prefix: str, adapter: Adapter) -> None:
    """Give the adapter in a network its weights.

    Raises:
        UsageError: they are not those of these layers.
    """
    state = network.state_dict()
    names = adapter_names(state, prefix)
    for key, name in names.items():
        check_tensor(name, state[key], adapter.tensors.get(name), adapter.where)
    unused = sorted(adapter.tensors.keys() - set(names.values()))
    if unused:
        raise UsageError(
            f"{adapter.where}: {unused[0]} is for no layer of the policy",
            code="checkpoint.unexpected-tensor",
        )
    given = {key: adapter.tensors[name].float() for key, name in names.items()}
    network.load_state_dict(given, strict=False, assign=True)
