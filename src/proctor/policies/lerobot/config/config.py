"""A checkpoint's config.json: the fields of every LeRobot policy, decoded and encoded.

No torch here: `--help` and the checks against an interface use only these records.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias, TypeVar, get_type_hints

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
from proctor.fingerprint import (
    EVALUATION_ONLY,
    LOCAL_PATH,
    PRESENTATION,
    TRAINING_ONLY,
    UNSAVED,
    ConfigUse,
    defining_fields,
)
from proctor.policies.base import Policy, PolicyConfig, PolicyPlugin, flag
from proctor.policies.latency import check_config_latency
from proctor.policies.lerobot.config.feature_json import (
    decode_features,
    encode_features,
    version_tuple,
)
from proctor.policies.lerobot.config.presets import RelativeChunks, SampleWindows, TrainingPreset
from proctor.policies.lerobot.processors.limits import (
    ALLOWED,
    Allowed,
    Choices,
    check_camera,
    check_fields,
    check_vector,
    up_to,
)
from proctor.settings import declared

if TYPE_CHECKING:
    from proctor.policies.lerobot.processors.processors import UsualSteps
    from proctor.policies.lerobot.processors.step import ProcessorStep

FEATURES = ("input_features", "output_features")
"""Config fields that hold features."""
NEW_IN_0_6 = {"since": "0.6"}
"""Field metadata: older LeRobot versions refuse this key."""
NOT_A_FLAG = {"hidden": True}
"""Field metadata: in config.json, but not a command-line flag."""


def training_field(help_text: str, default_help: str = "") -> dict[str, Any]:
    """Return the metadata of a config.json field that only training uses."""
    return {"help": help_text, "default_help": default_help} | TRAINING_ONLY


def setting(
    default: Any, help_text: str, allowed: Allowed | None = None, *, default_help: str = ""
) -> Any:
    """Declare a field of config.json that is a flag of evaluation and training."""
    return _declared(default, {"help": help_text, "default_help": default_help}, allowed)


def training_setting(
    default: Any, help_text: str, allowed: Allowed | None = None, *, default_help: str = ""
) -> Any:
    """Declare a field of config.json that is a flag of training only."""
    return _declared(default, training_field(help_text, default_help), allowed)


def unused(default: Any) -> Any:
    """Declare a field that LeRobot's config.json has and no run uses."""
    return _declared(default, NOT_A_FLAG)


def _declared(default: Any, metadata: dict[str, Any], allowed: Allowed | None = None) -> Any:
    return declared(default, metadata if allowed is None else {**metadata, ALLOWED: allowed})


_EVALUATION, _INT8 = EVALUATION_ONLY, {ALLOWED: Choices(("int8",))}


def run_flag(help_text: str, default_help: str = "") -> dict[str, Any]:
    """Return the metadata of a flag that is not saved in config.json."""
    return {**UNSAVED, "help": help_text, "default_help": default_help}


def _run_setting(
    default: Any, help_text: str, default_help: str = "", marks: dict[str, Any] = _EVALUATION
) -> Any:
    """Declare a flag of an evaluation that is not saved in config.json."""
    return field(default=default, metadata=run_flag(help_text, default_help) | _EVALUATION | marks)


@dataclass
class CheckpointConfig(PolicyConfig):
    """The fields of every LeRobot policy, in LeRobot's order, and the flags of a run.

    Defaults are those of LeRobot 0.6. A policy's own config inherits from this one.
    """

    help_group: ClassVar[str] = "Network"
    help_groups: ClassVar[Mapping[str, str]] = {
        "Observations and actions": "n_obs_steps chunk_size horizon n_action_steps rename_map "
        "drop_n_last_frames",
        "Images": "resize_shape image_resize_shape crop_shape image_crop_shape "
        "resize_imgs_with_padding empty_cameras",
        "Language": "instruction instructions tokenizer tokenizer_max_length",
        "Inference": "device use_amp dtype compile quantize pad_to latency_steps "
        "num_inference_steps rtc_config",
        "Hugging Face Hub": "push_to_hub repo_id private tags license eval_results",
    }

    file_type: ClassVar[str | None] = None
    """The type in config.json, where LeRobot has another name for the family."""

    n_obs_steps: int = setting(
        1, "observation steps given to the policy, the newest last", up_to(64)
    )
    input_features: dict[str, Feature] = unused({})
    output_features: dict[str, Feature] = unused({})
    device: str | None = flag(
        None,
        "device of the network: cpu, cuda, cuda:1, mps or auto (the fastest)",
        "auto",
        PRESENTATION,
    )
    use_amp: bool = flag(False, "mixed-precision inference (torch.autocast)", marks=_EVALUATION)
    use_peft: bool = unused(False)
    push_to_hub: bool = training_setting(
        False, "upload the best checkpoint, else the last one, to repo_id after the training"
    )
    repo_id: str | None = training_setting(
        None, "Hub repository of the upload, as user/name", default_help="no upload"
    )
    private: bool | None = training_setting(
        None, "make the Hub repository private", default_help="the setting of the Hub account"
    )
    tags: list[str] | None = training_setting(
        None, "additional tags of the model card", default_help="no additional tags"
    )
    license: str | None = training_setting(
        None, "licence in the model card", default_help="apache-2.0"
    )
    eval_results: str | None = field(
        default=None,
        metadata=training_field(
            "upload the success rate too, as a result of this task of a benchmark dataset on the "
            "Hub: ORG/DATASET:TASK",
            default_help="the rate is in the model card only",
        )
        | {"saved": False},
    )
    pretrained_path: str | None = unused(None)
    pretrained_revision: str | None = field(default=None, metadata=NEW_IN_0_6 | NOT_A_FLAG)

    dtype: str | None = _run_setting(
        "float32", "dtype of weights and activations: float32, bfloat16 or float16"
    )
    compile: bool = _run_setting(False, "compile the network with torch.compile")
    quantize: str | None = _run_setting(
        None, "weight quantisation: int8, for less memory", "no quantisation", _INT8
    )
    pad_to: int | None = _run_setting(
        None,
        "on an accelerator, pad every inference batch to this size",
        "8 in strict mode, else no padding",
        PRESENTATION,
    )
    latency_steps: int | None = _run_setting(
        None,
        "for serving: steps the robot executes during inference; an evaluation "
        "uses --eval.latency_steps",
        "0",
    )
    rename_map: dict[str, str] | None = field(
        default=None,
        metadata=run_flag(
            "rename observations for the policy, as {benchmark's name: policy's name}",
            default_help="no renaming",
        )
        | PRESENTATION
        | {"alias": "rename_map"},
    )
    instruction: str | None = _run_setting(
        None, "language instruction for every task", "the benchmark's"
    )
    instructions: dict[str, str] | None = _run_setting(
        None,
        "language instructions by task, as {push-v3: shove the puck}",
        "the benchmark's",
    )
    tokenizer: str | None = field(
        default=None,
        metadata=run_flag("folder or Hub id of the tokenizer", default_help="the checkpoint's")
        | PRESENTATION
        | LOCAL_PATH,
    )
    unknown: dict[str, Any] = field(default_factory=dict, metadata={"saved": False, "hidden": True})

    pipeline_names: ClassVar[tuple[str, str]] = ("policy_preprocessor", "policy_postprocessor")
    """Names of the files of its pre- and postprocessor, without ``.json``."""
    kept_by_resume: ClassVar[tuple[str, ...]] = ()
    """Flags of training that config.json does not hold: a resumed training keeps them."""
    values_in_old_files: ClassVar[Mapping[str, Any]] = {}
    """Values for fields that an old config.json lacks, without a note."""
    uses_all_weights: ClassVar[bool] = False
    """Whether weights that the network lacks are refused. LeRobot ignores them in its families."""

    if TYPE_CHECKING:  # every policy has these fields, at different positions in LeRobot's order
        n_action_steps: int = 1
        normalization_mapping: dict[str, NormMode] = field(default_factory=dict)

    @property
    def features(self) -> dict[str, Feature]:
        """The features that must match an interface: inputs and action."""
        return {**self.input_features, ACTION: self.output_features[ACTION]}

    @property
    def cameras(self) -> list[str]:
        """The image inputs, in the checkpoint's order, on which the network depends."""
        return [k for k, f in self.input_features.items() if f.kind is FeatureKind.VISUAL]

    @property
    def state_dim(self) -> int | None:
        """Length of the robot state; None if it is not an input."""
        feature = self.input_features.get(STATE)
        return feature.shape[0] if feature else None

    @property
    def env_dim(self) -> int | None:
        """Length of the environment state; None if it is not an input."""
        feature = self.input_features.get(ENVIRONMENT_STATE)
        return feature.shape[0] if feature else None

    @property
    def action_dim(self) -> int:
        """Length of one action."""
        return self.output_features[ACTION].shape[0]

    def with_features(self, inputs: Mapping[str, Feature], action_size: int) -> Self:
        """Return the config of a new network for ``inputs`` and actions of ``action_size``."""
        action = Feature(FeatureKind.ACTION, (action_size,), "float32")
        return replace(self, input_features=dict(inputs), output_features={ACTION: action})

    @property
    def replan_steps(self) -> int:
        """Actions executed before the next inference."""
        return self.n_action_steps

    def for_interface(
        self, interface: Interface, renames: Mapping[str, str], use: ConfigUse
    ) -> Self:
        """Return the config adapted to the sizes of ``interface``, or itself if sizes are fixed."""
        return self

    def encode_instruction(self, instruction: str) -> dict[str, Array]:
        """Return the network's inputs for an instruction, without a batch axis.

        Only for encodings without a tokenizer; tokenizers are pipeline steps. Empty if the policy
        takes no instruction this way.
        """
        return {}

    @property
    def language_conditioned(self) -> bool:
        """Whether the policy needs an instruction; configs with a tokenizer override this."""
        return bool(self.encode_instruction(""))

    def instruction_key(self, read: Mapping[str, Array]) -> Hashable:
        """Return a key that is equal for instructions that the network cannot distinguish."""
        return tuple((name, array.tobytes()) for name, array in sorted(read.items()))

    def processing(
        self, usual: UsualSteps
    ) -> tuple[Sequence[ProcessorStep], Sequence[ProcessorStep]]:
        """Return the pre- and postprocessor steps of a new policy.

        A checkpoint has them in its files. A family adds its own steps to the ``usual`` ones.
        """
        before = usual.rename, usual.to_batch, usual.to_device, usual.normalize
        return before, (usual.unnormalize, usual.to_cpu)

    @property
    def relative_chunks(self) -> RelativeChunks | None:
        """The relative actions whose statistics a new policy needs; None: it needs none."""
        return None

    def defines_processors(self, folder: Path) -> bool:
        """Whether files of another layout in ``folder`` define the pre- and postprocessor."""
        return False

    def samples(self) -> SampleWindows:
        """Return the time steps of a training sample."""
        raise UsageError(
            f"{self.type} cannot be trained here: its config defines no samples",
            code="policy.not-trainable",
        )

    def training_preset(self) -> TrainingPreset:
        """Return the policy's default optimiser and learning-rate schedule."""
        raise UsageError(
            f"{self.type} cannot be trained here: its config has no training preset",
            code="policy.not-trainable",
        )

    def validate(self) -> None:
        """Check all fields; a policy's own config extends this."""
        if ACTION not in self.output_features:
            raise UsageError(
                "the policy's output_features hold no 'action'", code="policy.missing-action"
            )
        if not self.input_features:
            raise UsageError("the policy's input_features are empty", code="policy.missing-input")
        check_fields(self)
        if not self.language_conditioned and (self.instructions or self.instruction is not None):
            raise UsageError(
                f"{self.type} takes no instruction: remove --policy.instruction(s)",
                code="policy.takes-no-instruction",
            )
        for key in self.cameras:
            check_camera(key, self.input_features[key])
        vectors = {**self.input_features, **self.output_features}
        for key in (STATE, ENVIRONMENT_STATE, ACTION):
            if key in vectors:
                check_vector(key, vectors[key].shape)


ConfigT = TypeVar("ConfigT", bound=CheckpointConfig)


ForeignReader: TypeAlias = Callable[
    [Path, Mapping[str, Any], Mapping[str, Any]], dict[str, Any] | None
]


@dataclass(frozen=True)
class CheckpointPlugin(PolicyPlugin):
    """A policy family of LeRobot checkpoints, with the import path of its network."""

    make: Callable[[Any, Interface], Policy] = field(kw_only=True)
    network: str = field(kw_only=True)
    """Class of its network, as package.module:ATTRIBUTE, imported on use."""
    prefix: str = field(kw_only=True)
    """Prefix of the network's parameter names in model.safetensors."""
    signature_fields: frozenset[str] = field(kw_only=True)
    """Fields that only this family's config.json has, to identify old files without a type."""
    steps: Mapping[str, str] = field(kw_only=True, default_factory=dict)
    """The family's own pipeline steps: LeRobot's names to classes as module:ATTRIBUTE."""
    optimizers: Mapping[str, str] = field(kw_only=True, default_factory=dict)
    """The family's optimiser types, and functions (settings, network) of parameter groups."""
    has_network: bool = True
    foreign: ForeignReader | None = field(kw_only=True, default=None)
    """Reader of another project's layout: from its folder, its config.json and the flags to
    LeRobot's config; None for files of other layouts."""
    check_config: Callable[[Any], None] | None = check_config_latency


def is_saved(name: str, config_class: type[CheckpointConfig]) -> bool:
    """Whether a field is saved in config.json."""
    known = {f.name: f for f in fields(config_class)}
    return name in known and bool(known[name].metadata.get("saved", True))


def decode_config(raw: Mapping[str, Any], config_class: type[ConfigT], where: str) -> ConfigT:
    """Decode a config.json; unknown keys go to ``unknown``. ``where`` names the file in errors."""
    kinds = get_type_hints(config_class)
    known = {k: _as_bool(kinds[k], v) for k, v in raw.items() if is_saved(k, config_class)}
    unknown = {k: v for k, v in raw.items() if k not in known}
    try:
        # msgspec leaves defaults on the class; replace() copies them to the object, to be saved.
        decoded = decode_features({**config_class.values_in_old_files, **known}, FEATURES)
        config = replace(msgspec.convert(decoded, config_class), unknown=unknown)
        config.validate()
    except UnicodeEncodeError:  # a lone surrogate, which JSON can hold and UTF-8 cannot
        raise UsageError(
            f"{where}: a name in it is not valid text", code="checkpoint.invalid-config"
        ) from None
    except UsageError as error:
        raise UsageError(f"{where}: {error}", code=error.code) from None
    except (msgspec.ValidationError, ArithmeticError) as error:
        raise UsageError(f"{where}: {error}", code="checkpoint.invalid-config") from None
    return config


def _as_bool(kind: Any, value: Any) -> Any:
    """Return booleans for 0 and 1, which LeRobot writes after reading a file."""
    return bool(value) if kind is bool and value in (0, 1) else value


def encode_config(config: CheckpointConfig, for_lerobot: str) -> str:
    """Return the text of config.json as LeRobot ``for_lerobot`` (such as "0.4.4") reads it.

    LeRobot refuses unknown keys, so fields newer than that version are left out. Keys that are
    unknown to Proctor come last, and only for the newest version.
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
            raise UsageError(
                f"LeRobot {for_lerobot} has no {f.name}, set to {values[f.name]!r}",
                code="checkpoint.needs-newer-lerobot",
            )
    if target >= version_tuple("0.6"):
        kept |= config.unknown
    if config.file_type is not None:
        kept["type"] = config.file_type
    return json.dumps(kept, indent=4)


def defining_config(config: CheckpointConfig) -> dict[str, Any]:
    """Return the fields that define an episode, as in config.json."""
    return defining_fields(config) | _written_features(config)


def _written_features(config: CheckpointConfig) -> dict[str, Any]:
    return {name: encode_features(getattr(config, name)) for name in FEATURES}
