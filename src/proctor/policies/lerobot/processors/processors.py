"""Pre- and postprocessor pipelines of a checkpoint: rename, batch, device, normalise.

A pipeline is a JSON file with a list of steps; steps with statistics have a safetensors file each.
Formulas (x raw, y normalised, d = high - low with exact zeros replaced by eps):

    MEAN_STD               y = (x - mean) / (std + eps)     x = y * std + mean
    MIN_MAX                y = 2 (x - min) / d - 1          x = (y + 1) / 2 * d + min
    QUANTILES, QUANTILE10  as MIN_MAX with q01, q99 or q10, q90; back: (y + 1) * d / 2 + low
    IDENTITY, or no statistics for the key: unchanged
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import msgspec
import torch
from torch import Tensor

from proctor.errors import UsageError
from proctor.features import ACTION, ENVIRONMENT_STATE, IMAGE, STATE, Array, Feature, NormMode
from proctor.policies.lerobot.config.feature_json import encode_features
from proctor.policies.lerobot.processors.step import OURS, ProcessorStep, PromptInputs, Tensors

if TYPE_CHECKING:
    from proctor.policies.lerobot.tokenizer.tokenizer import Tokenizers

Stats: TypeAlias = dict[str, dict[str, Tensor]]
"""Feature key -> name of the statistic (mean, std, min, ...) -> tensor."""

FLOATS = ("float16", "bfloat16", "float32", "float64")
NEEDED = {
    NormMode.MEAN_STD: ("mean", "std"),
    NormMode.MIN_MAX: ("min", "max"),
    NormMode.QUANTILES: ("q01", "q99"),
    NormMode.QUANTILE10: ("q10", "q90"),
    NormMode.IDENTITY: (),
}


@dataclass(frozen=True)
class Rename(ProcessorStep):
    """Rename observations to the policy's names."""

    registry_name: ClassVar[str] = "rename_observations_processor"
    rename_map: dict[str, str] = field(default_factory=dict)

    def __call__(self, tensors: Tensors) -> Tensors:
        """Rename old to new; a key's ``_is_pad`` companion goes with it."""
        renamed = {}
        for key, value in tensors.items():
            stem = next((s for s in ("_is_pad", "_padding_mask") if key.endswith(s)), "")
            name = key.removesuffix(stem)
            renamed[self.rename_map.get(name, name) + stem] = value
        return renamed

    def config(self) -> dict[str, Any]:
        """Return the map."""
        return {"rename_map": self.rename_map}


@dataclass(frozen=True)
class ToBatch(ProcessorStep):
    """Add a batch axis where it is missing."""

    registry_name: ClassVar[str] = "to_batch_processor"

    def __call__(self, tensors: Tensors) -> Tensors:
        """Vectors of state and action become [1, n]; lone images become [1, C, H, W]."""
        batched = {}
        for key, value in tensors.items():
            vector = key in (ACTION, STATE, ENVIRONMENT_STATE) and value.dim() == 1
            image = key.startswith(IMAGE) and value.dim() == 3
            batched[key] = value[None] if vector or image else value
        return batched


@dataclass(frozen=True)
class ToDevice(ProcessorStep):
    """Move tensors, and cast the floating ones where a dtype is given."""

    registry_name: ClassVar[str] = "device_processor"
    device: str = "cpu"
    float_dtype: str | None = None

    def __call__(self, tensors: Tensors) -> Tensors:
        """Move everything."""
        moved = {key: value.to(self.device) for key, value in tensors.items()}
        if self.float_dtype is None:
            return moved
        dtype = getattr(torch, self.float_dtype)
        return {k: v.to(dtype) if v.is_floating_point() else v for k, v in moved.items()}

    def config(self) -> dict[str, Any]:
        """Return device and dtype."""
        return {"device": self.device, "float_dtype": self.float_dtype}

    def check(self, where: str) -> None:
        """Refuse an unknown dtype."""
        if self.float_dtype not in (None, *FLOATS):
            raise UsageError(
                f"{where}: float_dtype is {self.float_dtype!r}", code="checkpoint.unsupported-step"
            )

    def on(self, device: torch.device) -> ProcessorStep:
        """Return the step for ``device``: the saved one is where the checkpoint was trained."""
        return replace(self, device=str(device))


@dataclass(frozen=True)
class Identity(ProcessorStep):
    """Change nothing."""

    registry_name: ClassVar[str] = "lerobot.processor.pipeline.IdentityProcessorStep"
    """LeRobot has no registry name for it: its files name the class."""


@dataclass(frozen=True)
class Normalize(ProcessorStep):
    """Normalise the network's inputs."""

    registry_name: ClassVar[str] = "normalizer_processor"
    eps: float = 1e-8
    features: dict[str, Feature] = field(default_factory=dict)
    norm_map: dict[str, NormMode] = field(default_factory=dict)
    normalize_observation_keys: list[str] | None = None
    stats: Stats = field(default_factory=dict, metadata=OURS)
    adds_eps: bool = field(default=False, metadata=OURS)
    """Checkpoints before LeRobot 0.4 divide by (max - min + eps)."""

    def mode(self, key: str) -> NormMode:
        """Return how ``key`` is normalised: IDENTITY if it has no statistics."""
        return self.asked(key) if key in self.stats else NormMode.IDENTITY

    def asked(self, key: str) -> NormMode:
        """Return how ``key`` should be normalised, by the config."""
        feature = self.features.get(key)
        if feature is None:
            return NormMode.IDENTITY
        chosen = self.normalize_observation_keys
        if chosen is not None and key != ACTION and key not in chosen:
            return NormMode.IDENTITY
        return self.norm_map.get(feature.kind.value, NormMode.IDENTITY)

    def __call__(self, tensors: Tensors) -> Tensors:
        """Normalise every tensor by its feature's mode."""
        return {key: self._one(key, value) for key, value in tensors.items()}

    def _one(self, key: str, x: Tensor) -> Tensor:
        mode = self.mode(key)
        if mode is NormMode.IDENTITY:
            return x
        first, second = self._numbers(key, mode, x)
        if mode is NormMode.MEAN_STD:
            return (x - first) / (second + self.eps)
        if self.adds_eps:
            return (x - first) / (second - first + self.eps) * 2 - 1
        return 2 * (x - first) / self._span(first, second) - 1

    def _numbers(self, key: str, mode: NormMode, like: Tensor) -> tuple[Tensor, Tensor]:
        first, second = (self.stats[key][name] for name in NEEDED[mode])
        return first.to(like.device, like.dtype), second.to(like.device, like.dtype)

    def _span(self, low: Tensor, high: Tensor) -> Tensor:
        span = high - low
        return torch.where(span == 0, torch.full_like(span, self.eps), span)

    def config(self) -> dict[str, Any]:
        """Return features and modes."""
        named: dict[str, Any] = {
            "eps": self.eps,
            "features": encode_features(self.features),
            "norm_map": msgspec.to_builtins(self.norm_map),
        }
        if self.normalize_observation_keys is not None:
            named["normalize_observation_keys"] = self.normalize_observation_keys
        return named

    def state(self) -> Tensors:
        """Return all statistics as ``<feature>.<statistic>``."""
        return {f"{k}.{name}": v for k, each in self.stats.items() for name, v in each.items()}

    def on(self, device: torch.device) -> ProcessorStep:
        """Return the step with its statistics on ``device``."""
        moved = {k: {n: v.to(device) for n, v in each.items()} for k, each in self.stats.items()}
        return replace(self, stats=moved)


@dataclass(frozen=True)
class Unnormalize(Normalize):
    """Convert the network's outputs back to the robot's units."""

    registry_name: ClassVar[str] = "unnormalizer_processor"

    def _one(self, key: str, y: Tensor) -> Tensor:
        mode = self.mode(key)
        if mode is NormMode.IDENTITY:
            return y
        first, second = self._numbers(key, mode, y)
        if mode is NormMode.MEAN_STD:
            return y * second + first
        span = second - first if self.adds_eps else self._span(first, second)
        if mode is NormMode.MIN_MAX:
            return (y + 1) / 2 * span + first
        return (y + 1) * span / 2 + first


@dataclass(frozen=True)
class UsualSteps:
    """The steps that every policy has, with its statistics."""

    rename: ProcessorStep
    to_batch: ProcessorStep
    to_device: ProcessorStep
    normalize: ProcessorStep
    unnormalize: ProcessorStep
    to_cpu: ProcessorStep


StepLists: TypeAlias = tuple[Sequence[ProcessorStep], Sequence[ProcessorStep]]
"""The steps of a preprocessor and of a postprocessor."""


@dataclass(frozen=True)
class Pipeline:
    """A named sequence of steps."""

    name: str
    steps: tuple[ProcessorStep, ...]

    def __call__(self, tensors: Tensors) -> Tensors:
        """Return the tensors after all steps."""
        for step in self.steps:
            tensors = step(tensors)
        return tensors

    def on(self, device: torch.device) -> Pipeline:
        """Return the pipeline for ``device``."""
        return replace(self, steps=tuple(step.on(device) for step in self.steps))

    def encode_prompt(self, words: Sequence[str], seen: Tensors) -> dict[str, Array]:
        """Return the network's prompt inputs by name, [B, ...] each.

        ``seen`` holds the observations of ``needs`` and, in training, of ``training_keys``:
        [B, ...] on the CPU, by the benchmark's names.
        """
        prompt_inputs = PromptInputs(tuple(words), seen)
        for step in self.steps if self.adds_prompt_inputs else ():
            prompt_inputs = step.encode_prompt(prompt_inputs)
        return prompt_inputs.arrays

    @property
    def adds_prompt_inputs(self) -> bool:
        """Whether a step adds prompt inputs."""
        return any(step.adds_prompt_inputs for step in self.steps)

    @property
    def needs(self) -> tuple[str, ...]:
        """Observations that its steps need on the CPU, by the policy's names."""
        return tuple(dict.fromkeys(key for step in self.steps for key in step.needs))

    @property
    def training_keys(self) -> tuple[str, ...]:
        """Further keys of a training sample that prompt inputs depend on."""
        return tuple(dict.fromkeys(key for step in self.steps for key in step.training_keys))

    @property
    def training_draws(self) -> dict[str, int]:
        """Keys of random numbers that its steps need in training: how many for each row."""
        return {key: count for step in self.steps for key, count in step.training_draws.items()}

    @property
    def files(self) -> dict[str, bytes]:
        """The files of its steps, by their path in a checkpoint."""
        return {name: held for step in self.steps for name, held in step.files().items()}

    def with_tokenizers(self, tokenizers: Tokenizers) -> Pipeline:
        """Return the pipeline with the tokenizers of its steps loaded."""
        return replace(self, steps=tuple(step.with_tokenizers(tokenizers) for step in self.steps))

    def inverse_of(self, earlier: Pipeline) -> Pipeline:
        """Return a postprocessor whose steps are bound to the ``earlier`` steps they invert."""
        return replace(self, steps=tuple(step.inverse_of(earlier.steps) for step in self.steps))

    def with_rename_map(self, rename_map: dict[str, str] | None) -> Pipeline:
        """Return the pipeline with another rename map, put first; None keeps its own."""
        if rename_map is None:
            return self
        others = tuple(step for step in self.steps if not isinstance(step, Rename))
        return replace(self, steps=(Rename(rename_map), *others))

    @property
    def rename_map(self) -> dict[str, str]:
        """The map of its rename step; empty if it has none."""
        maps = [step.rename_map for step in self.steps if isinstance(step, Rename)]
        return maps[0] if maps else {}

    def protocol(self) -> dict[str, Any]:
        """Return the configs of the steps, in order; their statistics are hashed as files.

        The device is left out: it is where the checkpoint was trained.
        """
        return {
            f"{place}_{step.registry_name}": {
                name: value for name, value in step.config().items() if name != "device"
            }
            for place, step in enumerate(self.steps)
        }

    def lacks_stats(self, key: str) -> bool:
        """Whether ``key`` should be normalised but has no statistics."""
        steps = [step for step in self.steps if isinstance(step, Normalize)]
        return any(
            step.asked(key) is not NormMode.IDENTITY and key not in step.stats for step in steps
        )

    def state_file(self, index: int) -> str:
        """Return the name LeRobot gives the state file of step ``index``."""
        stem = re.sub(r"[^a-zA-Z0-9_]", "_", self.name.lower())
        return f"{stem}_step_{index}_{self.steps[index].registry_name}.safetensors"
