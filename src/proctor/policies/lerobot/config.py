"""What stands in a checkpoint's config.json: the fields every LeRobot policy has, read and written.

No torch here: `--help` and the checks against an interface need nothing but these records.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, get_type_hints

import msgspec

from proctor.errors import UsageError
from proctor.features import (
    ACTION,
    ENVIRONMENT_STATE,
    STATE,
    Array,
    Feature,
    FeatureKind,
    Interface,
    NormMode,
)
from proctor.fingerprint import PRESENTATION, ConfigUse, defining_fields, flag_only_for
from proctor.policies.base import PolicyConfig, PolicyPlugin
from proctor.policies.latency import check_lasting
from proctor.policies.lerobot.feature_json import decode_features, encode_features, version_tuple
from proctor.policies.lerobot.limits import check_camera, check_sizes, check_vector
from proctor.policies.lerobot.presets import SampleWindows, TrainingPreset

if TYPE_CHECKING:
    from proctor.policies.lerobot.processors import UsualSteps
    from proctor.policies.lerobot.step import ProcessorStep

FEATURES = ("input_features", "output_features")
"""The fields that hold features."""
QUANTIZED = ("int8",)
NEW_IN_0_6 = {"since": "0.6"}
"""Field metadata: older LeRobots refuse this key."""
NOT_A_FLAG = {"hidden": True}
"""Field metadata: stands in config.json, and no run has a use for it."""


def training_field(help_text: str) -> dict[str, Any]:
    """Return the metadata of a field of config.json that only a training has a use for."""
    return {"help": help_text} | flag_only_for(ConfigUse.TRAINING)


_EVALUATION = flag_only_for(ConfigUse.EVALUATION)


def run_flag(help_text: str) -> dict[str, Any]:
    """Return the metadata of a field that is ours: a flag of this run, not for config.json."""
    return {"saved": False, "help": help_text}


@dataclass
class CheckpointConfig(PolicyConfig):
    """The fields of every LeRobot policy, in LeRobot's order, and the flags of a run.

    Defaults are those of LeRobot 0.6. A policy's own config inherits from this one.
    """

    n_obs_steps: int = field(
        default=1, metadata={"help": "observations it looks at, the newest last"}
    )
    input_features: dict[str, Feature] = field(default_factory=dict, metadata=NOT_A_FLAG)
    output_features: dict[str, Feature] = field(default_factory=dict, metadata=NOT_A_FLAG)
    device: str | None = field(
        default=None, metadata={"help": "cpu, cuda, mps or auto"} | PRESENTATION
    )
    use_amp: bool = field(
        default=False, metadata={"help": "mixed precision (torch.autocast)"} | _EVALUATION
    )
    use_peft: bool = field(default=False, metadata=NOT_A_FLAG)
    push_to_hub: bool = field(
        default=False, metadata=training_field("upload the best or last checkpoint to repo_id")
    )
    repo_id: str | None = field(default=None, metadata=training_field("Hub repository, user/name"))
    private: bool | None = field(default=None, metadata=training_field("a private repository"))
    tags: list[str] | None = field(default=None, metadata=training_field("more tags of its page"))
    license: str | None = field(default=None, metadata=training_field("its licence (apache-2.0)"))
    pretrained_path: str | None = field(default=None, metadata=NOT_A_FLAG)
    pretrained_revision: str | None = field(default=None, metadata=NEW_IN_0_6 | NOT_A_FLAG)

    dtype: str | None = field(
        default="float32",
        metadata=run_flag("weights and activations: float32, bfloat16, float16") | _EVALUATION,
    )
    compile: bool = field(
        default=False, metadata=run_flag("compile with torch.compile") | _EVALUATION
    )
    quantize: str | None = field(
        default=None,
        metadata=run_flag("int8: keep matrices as 8-bit numbers, for less memory") | _EVALUATION,
    )
    pad_to: int | None = field(
        default=None,
        metadata=run_flag("on an accelerator, run every batch at this size")
        | PRESENTATION
        | _EVALUATION,
    )
    latency_steps: int | None = field(
        default=None,
        metadata=run_flag("steps the robot goes on while it thinks (set by --eval.latency_steps)")
        | _EVALUATION,
    )
    rename_map: dict[str, str] | None = field(
        default=None,
        metadata=run_flag("benchmark's names to the policy's, as {theirs: ours}")
        | PRESENTATION
        | {
            "alias": "rename_map",
            "alias_help": "the benchmark's observation names to the policy's, for policies from "
            "checkpoints",
        },
    )
    instruction: str | None = field(
        default=None,
        metadata=run_flag("words for every task, instead of the benchmark's") | _EVALUATION,
    )
    instructions: dict[str, str] | None = field(
        default=None,
        metadata=run_flag("other words for tasks by name, as {push-v3: shove the puck}")
        | _EVALUATION,
    )
    tokenizer: str | None = field(
        default=None,
        metadata=run_flag("folder or Hub id of the tokenizer, instead of the checkpoint's own")
        | PRESENTATION,
    )
    unknown: dict[str, Any] = field(default_factory=dict, metadata={"saved": False, "hidden": True})

    values_in_old_files: ClassVar[Mapping[str, Any]] = {}
    """Values of fields that a config.json without them was written with, where not the default."""

    if TYPE_CHECKING:  # every policy has these, but each at its own place in LeRobot's order
        n_action_steps: int = 1
        normalization_mapping: dict[str, NormMode] = field(default_factory=dict)

    @property
    def features(self) -> dict[str, Feature]:
        """All that has to fit an interface: what the policy looks at, and its action."""
        return {**self.input_features, ACTION: self.output_features[ACTION]}

    @property
    def cameras(self) -> list[str]:
        """The image inputs, in the order the checkpoint lists them: it selects weights."""
        return [k for k, f in self.input_features.items() if f.kind is FeatureKind.VISUAL]

    @property
    def state_dim(self) -> int | None:
        """Length of the robot state; None where the policy does not look at it."""
        feature = self.input_features.get(STATE)
        return feature.shape[0] if feature else None

    @property
    def env_dim(self) -> int | None:
        """Length of the environment state; None where the policy does not look at it."""
        feature = self.input_features.get(ENVIRONMENT_STATE)
        return feature.shape[0] if feature else None

    @property
    def action_dim(self) -> int:
        """Length of one action."""
        return self.output_features[ACTION].shape[0]

    @property
    def replan_steps(self) -> int:
        """How many actions are played before the policy is asked again."""
        return self.n_action_steps

    def made_for(self, interface: Interface, renames: Mapping[str, str], use: ConfigUse) -> Self:
        """Return the config as it is for ``interface``: a policy that takes other sizes says so."""
        return self

    def read(self, instruction: str) -> dict[str, Array]:
        """Return what the network sees of a task's words, each an array without a batch axis.

        For words that need no tokenizer: of others, ``processing`` tells. Empty: nothing.
        """
        return {}

    @property
    def language_conditioned(self) -> bool:
        """Whether the policy is told its task in words; one with a tokenizer says so here."""
        return bool(self.read(""))

    def text_key(self, read: Mapping[str, Array]) -> Hashable:
        """Return what of a text, once ``read``, reaches the network: same key, same text to it."""
        return tuple((name, array.tobytes()) for name, array in sorted(read.items()))

    def processing(
        self, usual: UsualSteps
    ) -> tuple[Sequence[ProcessorStep], Sequence[ProcessorStep]]:
        """Return the steps before and behind a new network; a checkpoint's are in its own files.

        A policy with steps of its own puts them among the ``usual`` ones.
        """
        before = usual.rename, usual.to_batch, usual.to_device, usual.normalize
        return before, (usual.unnormalize, usual.to_cpu)

    def samples(self) -> SampleWindows:
        """Return what one sample of a training is made of.

        Raises:
            UsageError: the policy does not say, so it cannot be trained here.
        """
        raise UsageError(f"{self.type} cannot be trained here: its config does not say on what")

    def training_preset(self) -> TrainingPreset:
        """Return the optimiser and the schedule that the policy was designed with."""
        raise UsageError(f"{self.type} cannot be trained here: its config has no preset for it")

    def validate(self) -> None:
        """Check the fields against each other; a policy's own config extends this.

        Raises:
            UsageError: they cannot be, in the words of the field at fault.
        """
        if ACTION not in self.output_features:
            raise UsageError("the policy's output_features hold no 'action'")
        if not self.input_features:
            raise UsageError("the policy's input_features are empty")
        check_sizes(self, {"n_obs_steps": 64})
        if self.quantize not in (None, *QUANTIZED):
            raise UsageError(f"quantize is {self.quantize!r} (choose {', '.join(QUANTIZED)})")
        if not self.language_conditioned and (self.instructions or self.instruction is not None):
            raise UsageError(f"{self.type} is not told its task: it takes no instruction")
        for key in self.cameras:
            check_camera(key, self.input_features[key])
        vectors = {**self.input_features, **self.output_features}
        for key in (STATE, ENVIRONMENT_STATE, ACTION):
            if key in vectors:
                check_vector(key, vectors[key].shape)


ConfigT = TypeVar("ConfigT", bound=CheckpointConfig)


@dataclass(frozen=True)
class CheckpointPlugin(PolicyPlugin):
    """A policy that LeRobot checkpoints hold: also where its network is."""

    network: str = field(kw_only=True)
    """The class of its network, as package.module:ATTRIBUTE: imported when one is built."""
    prefix: str = field(kw_only=True)
    """What stands before the network's own names in model.safetensors."""
    signature_fields: frozenset[str] = field(kw_only=True)
    """Fields that only this policy's config.json has: old files do not state their type."""
    steps: Mapping[str, str] = field(kw_only=True, default_factory=dict)
    """The family's own pipeline steps: LeRobot's names, and classes as module:ATTRIBUTE."""
    optimizers: Mapping[str, str] = field(kw_only=True, default_factory=dict)
    """The family's own optimiser types, and what makes parameter groups (settings, network)."""
    has_network: bool = True
    look: Callable[[Any], None] | None = check_lasting


def is_saved(name: str, config_class: type[CheckpointConfig]) -> bool:
    """Tell whether a field belongs into config.json."""
    known = {f.name: f for f in fields(config_class)}
    return name in known and bool(known[name].metadata.get("saved", True))


def decode_config(raw: Mapping[str, Any], config_class: type[ConfigT], where: str) -> ConfigT:
    """Make a config from the JSON object of ``where``; keys we do not know go to ``unknown``.

    Raises:
        UsageError: a value has the wrong type, or the values contradict each other.
    """
    kinds = get_type_hints(config_class)
    known = {k: _as_bool(kinds[k], v) for k, v in raw.items() if is_saved(k, config_class)}
    unknown = {k: v for k, v in raw.items() if k not in known}
    try:
        # msgspec leaves defaults to the class; replace() puts them on the object, to be written.
        decoded = decode_features({**config_class.values_in_old_files, **known}, FEATURES)
        config = replace(msgspec.convert(decoded, config_class), unknown=unknown)
        config.validate()
    except UnicodeEncodeError:  # a lone surrogate, which JSON can spell and nothing can write
        raise UsageError(f"{where}: a name in it is no text") from None
    except (msgspec.ValidationError, ArithmeticError, UsageError) as error:
        raise UsageError(f"{where}: {error}") from None
    return config


def _as_bool(kind: Any, value: Any) -> Any:
    """Return 0 and 1 as what is meant: what LeRobot reads and writes again, it writes so."""
    return bool(value) if kind is bool and value in (0, 1) else value


def encode_config(config: CheckpointConfig, for_lerobot: str) -> str:
    """Return the text of config.json as LeRobot ``for_lerobot`` (such as "0.4.4") reads it.

    LeRobot refuses keys that it does not know, so fields newer than that version are left out; keys
    that were unknown to us come last and only for the newest readers.
    """
    target = version_tuple(for_lerobot)
    values = msgspec.to_builtins(config) | _written_features(config)
    kept: dict[str, Any] = {}
    for f in fields(config):
        if not f.metadata.get("saved", True):
            continue
        since = f.metadata.get("since")
        if since is None or target >= version_tuple(since):
            kept[f.name] = values[f.name]
        elif values[f.name] != f.default:
            raise UsageError(f"LeRobot {for_lerobot} has no {f.name}, set to {values[f.name]!r}")
    if target >= version_tuple("0.6"):
        kept |= config.unknown
    return json.dumps(kept, indent=4)


def definition_of(config: CheckpointConfig) -> dict[str, Any]:
    """Return the fields that define an episode, in the words of config.json."""
    return defining_fields(config) | _written_features(config)


def _written_features(config: CheckpointConfig) -> dict[str, Any]:
    return {name: encode_features(getattr(config, name)) for name in FEATURES}
