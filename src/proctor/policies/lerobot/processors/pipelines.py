"""A checkpoint's pre- and postprocessor: read from its files, or made with LeRobot's defaults."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from proctor.errors import UsageError
from proctor.features import ACTION, Array, Feature, FeatureKind, NormMode
from proctor.policies.lerobot.checkpoint.location import read_json
from proctor.policies.lerobot.checkpoint.tensor_file import read_tensors
from proctor.policies.lerobot.config.config import CheckpointConfig
from proctor.policies.lerobot.processors.processors import (
    Normalize,
    Pipeline,
    Rename,
    Stats,
    ToBatch,
    ToDevice,
    Unnormalize,
    UsualSteps,
)
from proctor.policies.lerobot.processors.step import ProcessorStep, Tensors
from proctor.policies.lerobot.processors.step_reader import build_step, check_stats
from proctor.policies.lerobot.tokenizer.tokenizer import Tokenizers

MOST_PIPELINE_STEPS = 100
STATE_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}\.safetensors")


def has_pipelines(folder: Path, config: CheckpointConfig) -> bool:
    """Whether a checkpoint has pipeline files; those before LeRobot 0.4 do not."""
    return any((folder / f"{name}.json").is_file() for name in config.pipeline_names)


def read_pipelines(
    folder: Path, config: CheckpointConfig, stated: CheckpointConfig | None = None
) -> tuple[Pipeline, Pipeline]:
    """Return the pre- and postprocessor, with statistics and tokenizers.

    The steps are those of the files. Flags that changed the ``stated`` config also change the
    steps: the prompt's length, for example, is in both.
    """
    read = (read_pipeline(folder, name) for name in config.pipeline_names)
    made = zip(_made(stated or config), _made(config), strict=True)
    before, after = (_following(p, *of) for p, of in zip(read, made, strict=True))
    return _ready(before, after, config, folder)


def _made(config: CheckpointConfig) -> tuple[Sequence[ProcessorStep], Sequence[ProcessorStep]]:
    """Return the default steps of a policy with this config."""
    norm_map = config.normalization_mapping
    return config.processing(
        _usual(Normalize(norm_map=norm_map), Unnormalize(norm_map=norm_map), "cpu")
    )


def _usual(normalize: Normalize, unnormalize: Unnormalize, device: str) -> UsualSteps:
    return UsualSteps(
        rename=Rename(),
        to_batch=ToBatch(),
        to_device=ToDevice(device),
        normalize=normalize,
        unnormalize=unnormalize,
        to_cpu=ToDevice("cpu"),
    )


def _following(
    pipeline: Pipeline, stated: Sequence[ProcessorStep], asked: Sequence[ProcessorStep]
) -> Pipeline:
    """Return a pipeline with the settings in which ``asked`` differs from ``stated``."""
    steps = list(pipeline.steps)
    for old, new in zip(stated, asked, strict=True):
        settings = [f.name for f in fields(new) if f.metadata.get("from_config", True)]
        given = {name: getattr(new, name) for name in settings}
        changed = {name: v for name, v in given.items() if v != getattr(old, name)}
        places = [n for n, step in enumerate(steps) if type(step) is type(new)]
        if changed and not places:
            raise UsageError(
                f"the checkpoint's {pipeline.name} has no {new.registry_name}, but flags change "
                f"its {', '.join(changed)}",
                code="flag.unused",
            )
        for n in places if changed else ():
            steps[n] = replace(steps[n], **changed)
            steps[n].check(f"--policy: {pipeline.name}, {new.registry_name}")
    return replace(pipeline, steps=tuple(steps))


def pipeline_files(folder: Path, config: CheckpointConfig) -> dict[str, Path]:
    """Return the files of a checkpoint's pipelines by name; they must have been read before."""
    files: list[Path] = []
    for name in config.pipeline_names:
        file = folder / f"{name}.json"
        if file.is_file():
            steps = read_json(file).get("steps", [])
            named = [step["state_file"] for step in steps if step.get("state_file") is not None]
            files += [file, *(folder / state for state in named)]
    return {file.name: file for file in files}


def restrict_features(pipeline: Pipeline, features: Mapping[str, Feature]) -> Pipeline:
    """Return a pipeline whose normalisers have only ``features``, with these sizes."""
    steps = [
        replace(s, features={k: features[k] for k in s.features if k in features})
        if isinstance(s, Normalize)
        else s
        for s in pipeline.steps
    ]
    return replace(pipeline, steps=tuple(steps))


def file_hashes(pipeline: Pipeline) -> dict[str, str]:
    """Return the SHA-256 of every file of its steps, such as tokenizers."""
    return {name: hashlib.sha256(held).hexdigest() for name, held in pipeline.files.items()}


def require_stats(folder: Path, config: CheckpointConfig, inputs: Stats, outputs: Stats) -> None:
    """Refuse a checkpoint without its pipeline files: its inputs would not be normalised.

    The prompt of a language-conditioned policy is also defined only in these files.
    """
    name = config.pipeline_names[0]
    for features, stats in ((config.input_features, inputs), (config.output_features, outputs)):
        for key, feature in features.items():
            mode = _asked(config, feature)
            if mode is not NormMode.IDENTITY and key not in stats:
                raise UsageError(
                    f"{folder} has no {name}.json, and its weights hold no statistics of {key} for "
                    f"{mode.value}: copy the checkpoint's processor files too",
                    code="checkpoint.missing-pipelines",
                )
    if config.language_conditioned and not inputs and not outputs:
        raise UsageError(
            f"{folder} has no {name}.json, which defines the prompt of {config.type}: copy the "
            "checkpoint's processor files too",
            code="checkpoint.missing-pipelines",
        )


def features_without_stats(
    config: CheckpointConfig, before: Pipeline, after: Pipeline
) -> list[str]:
    """Return the features that should be normalised but have no statistics."""
    found = []
    for pipeline, features in (before, config.input_features), (after, config.output_features):
        scales = any(isinstance(step, Normalize) for step in pipeline.steps)
        for key, feature in features.items():
            forgotten = not scales and _asked(config, feature) is not NormMode.IDENTITY
            found += [key] if forgotten or pipeline.lacks_stats(key) else []
    return found


def normalization_conflicts(
    config: CheckpointConfig, before: Pipeline, after: Pipeline
) -> list[str]:
    """Return differences in mode or size between the steps' normalisation and ``config``."""
    found = []
    for pipeline, features in (before, config.input_features), (after, config.output_features):
        steps = [step for step in pipeline.steps if isinstance(step, Normalize)]
        if len(steps) > 1:  # each for features of its own
            steps = [step for step in steps if step.features.keys() & features.keys()]
        for step, (key, feature) in itertools.product(steps, features.items()):
            stated, asked, listed = _asked(config, feature), step.asked(key), step.features.get(key)
            if asked is not stated and key in (step.normalize_observation_keys or (key,)):
                how = asked.value if listed is not None else "does not list it"
                found.append(f"{key} is {stated.value}, {pipeline.name} {how}")
            elif listed is not None and _other_size(listed, feature):
                sizes = f"{list(feature.shape)}, {pipeline.name} {list(listed.shape)}"
                found.append(f"{key} has shape {sizes}")
    return found


def _other_size(one: Feature, other: Feature) -> bool:
    """Whether two features differ in size; images may have any size."""
    return FeatureKind.VISUAL not in (one.kind, other.kind) and one.shape != other.shape


def with_dataset_stats(
    config: CheckpointConfig, before: Pipeline, after: Pipeline, stats: Stats
) -> tuple[Pipeline, Pipeline]:
    """Return the pipelines with another dataset's statistics and the modes of ``config``.

    As in LeRobot, they replace the checkpoint's own features and modes.
    """
    everything = {**config.input_features, **config.output_features}
    of = (before, everything), (after, config.output_features)
    norm_map = config.normalization_mapping
    pre, post = (
        replace(
            pipeline,
            steps=tuple(
                replace(step, stats=stats, features=features, norm_map=norm_map)
                if isinstance(step, Normalize)
                else step
                for step in pipeline.steps
            ),
        )
        for pipeline, features in of
    )
    return pre, post


def action_stats(after: Pipeline) -> dict[str, Array] | None:
    """Return the statistics of the demonstrated actions, in the environment's units.

    None if there are none, or if steps after the unnormalizer change the actions.
    """
    places = [n for n, step in enumerate(after.steps) if isinstance(step, Unnormalize)]
    if not places or not all(isinstance(s, ToDevice) for s in after.steps[places[-1] + 1 :]):
        return None
    step = after.steps[places[-1]]
    assert isinstance(step, Unnormalize)
    return {name: value.numpy(force=True) for name, value in step.stats.get(ACTION, {}).items()}


def _asked(config: CheckpointConfig, feature: Feature) -> NormMode:
    return config.normalization_mapping.get(feature.kind.value, NormMode.IDENTITY)


def read_pipeline(folder: Path, name: str) -> Pipeline:
    """Return the pipeline of ``<name>.json`` with its statistics, without tokenizers."""
    file = folder / f"{name}.json"
    raw = read_json(file)
    listed = raw.get("steps", [])
    if not isinstance(listed, list) or len(listed) > MOST_PIPELINE_STEPS:
        raise UsageError(
            f"{file}: steps is not a list of at most {MOST_PIPELINE_STEPS}",
            code="checkpoint.invalid-pipeline",
        )
    steps = []
    for index, step in enumerate(listed):
        state = _state_of(step, folder, f"{file} step {index}")
        steps.append(build_step(step, state, f"{file} step {index}"))
    return Pipeline(str(raw.get("name", name)), tuple(steps))


def _state_of(step: Any, folder: Path, where: str) -> Tensors:
    """Return the tensors of a step's state file, which must be beside the pipeline."""
    state_file = step.get("state_file") if isinstance(step, dict) else None
    if state_file is None:
        return {}
    if not isinstance(state_file, str) or not STATE_FILE.fullmatch(state_file):
        raise UsageError(
            f"{where}: state_file {state_file!r} is not the name of a file beside it",
            code="checkpoint.invalid-pipeline",
        )
    return read_tensors(folder / state_file)


def default_pipelines(
    config: CheckpointConfig, inputs: Stats, outputs: Stats, *, legacy_in: Path | None = None
) -> tuple[Pipeline, Pipeline]:
    """Return LeRobot's default pipelines of a policy, with these statistics.

    ``legacy_in`` is the folder of a checkpoint without pipeline files.
    """
    legacy = legacy_in is not None
    norm_map = config.normalization_mapping
    everything = {**config.input_features, **config.output_features}
    normalize = Normalize(features=everything, norm_map=norm_map, stats=inputs, adds_eps=legacy)
    unnormalize = Unnormalize(
        features=config.output_features, norm_map=norm_map, stats=outputs, adds_eps=legacy
    )
    for step in (normalize, unnormalize):
        check_stats(step, f"the {'checkpoint' if legacy else 'dataset'}'s statistics")
    before, after = config.processing(_usual(normalize, unnormalize, config.device or "cpu"))
    names = config.pipeline_names
    return _ready(
        Pipeline(names[0], tuple(before)), Pipeline(names[1], tuple(after)), config, legacy_in
    )


def _ready(
    before: Pipeline, after: Pipeline, config: CheckpointConfig, folder: Path | None
) -> tuple[Pipeline, Pipeline]:
    """Return both with tokenizers loaded and inverse steps bound; check their inputs."""
    if config.tokenizer is not None and not before.adds_prompt_inputs:
        raise UsageError(
            f"{config.type} has no tokenizer: remove --policy.tokenizer",
            code="flag.unused",
        )
    if before.adds_prompt_inputs and not config.language_conditioned:
        raise UsageError(
            f"{config.type} takes no instruction, but its preprocessor makes tokens",
            code="checkpoint.unexpected-tokenizer",
        )
    if config.language_conditioned and not (
        before.adds_prompt_inputs or config.encode_instruction("")
    ):
        raise UsageError(
            f"{config.type} needs an instruction, but its preprocessor makes no tokens",
            code="checkpoint.missing-tokenizer",
        )
    before = before.inverse_of(replace(before, steps=())).with_tokenizers(
        Tokenizers(folder, config.tokenizer)
    )
    after = after.inverse_of(before)
    for key in (*before.needs, *after.needs):
        if key not in config.input_features:
            raise UsageError(
                f"a step needs {key}, which is not an input of the policy",
                code="checkpoint.pipeline-mismatch",
            )
    return before, after
