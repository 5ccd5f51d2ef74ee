"""The engine's policy around a checkpoint's network: observations in, action chunks out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from proctor.errors import PolicyError, ProctorError, UsageError, strip_control_codes
from proctor.features import ACTION, LANGUAGE_MASK, LANGUAGE_TOKENS, Array, Feature
from proctor.fingerprint import ConfigUse
from proctor.policies.base import Batch, Policy, PolicySpec, Query
from proctor.policies.compatibility import source_key
from proctor.policies.latency import check_latency
from proctor.policies.lerobot.adapter import Adapter
from proctor.policies.lerobot.config.config import CheckpointConfig, defining_config
from proctor.policies.lerobot.config.feature_json import channels_first
from proctor.policies.lerobot.processors.processors import Pipeline
from proctor.policies.runtime.compiled import (
    compile_parts,
    require_compiler,
    summarize_compiler_errors,
)
from proctor.policies.runtime.network import Network, draw_noise
from proctor.policies.runtime.prompts import (
    InstructionEncoder,
    PromptGroup,
    check_token_ids,
    group_by_prompt_length,
    prompt_padding_rule,
    restore_order,
)
from proctor.policies.runtime.quantized import quantize
from proctor.policies.runtime.runner import (
    autocast,
    device_or_fallback,
    make_runner,
    numerics_record,
    pick_dtype,
)
from proctor.types import EpisodeSpec, Task

NOISE_KEY, PROMPT_KEY, EPISODE_KEY = "drawn: ", "prompt: ", "recalled: "
"""Prefixes of the keys of noise, prompt inputs and episode state among the rows of a batch."""
_COMPILE = "--policy.compile"


@dataclass(frozen=True)
class LoadedCheckpoint:
    """The parts of a checkpoint, read and checked."""

    config: CheckpointConfig
    network: Network
    prefix: str
    """Prefix of the network's parameter names in model.safetensors."""
    preprocessor: Pipeline
    postprocessor: Pipeline
    files: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of every file that was read; empty if the weights are random."""
    notes: tuple[str, ...] = ()
    """Lines that are shown to the user once: unknown keys, assumed defaults."""
    warnings: tuple[str, ...] = ()
    """Warnings that change what a result means."""
    adapter: Adapter | None = None
    """The adapter (LoRA), if the base weights are frozen."""

    def instruction_encoder(self, use: ConfigUse) -> InstructionEncoder:
        """Return the encoder of instructions for this checkpoint."""
        return InstructionEncoder(self.config, self.preprocessor, use)

    @property
    def base(self) -> str | None:
        """Path or Hub id of the adapter's base policy."""
        return None if self.adapter is None else self.adapter.config.base_model_name_or_path


class ChunkPolicy(Policy):
    """Runs a network on its device, between the checkpoint's pre- and postprocessor.

    It holds weights and no episode. Observation histories come with the batch, temporal ensembles
    are in the queries' states, and noise is a function of (seed, task, episode, query).
    """

    def __init__(self, parts: LoadedCheckpoint, device: str) -> None:
        config = parts.config
        asked, is_stateful = config.latency_steps or 0, bool(parts.network.episode_inputs)
        check_latency(asked, config.type, config.replan_steps, is_stateful=is_stateful)
        self.parts = parts
        renames = parts.preprocessor.rename_map
        self._instruction_encoder = parts.instruction_encoder(ConfigUse.EVALUATION)
        dry_run_steps(config, parts.preprocessor, parts.postprocessor, self._instruction_encoder)
        nothing = self._instruction_encoder.blank_inputs(1)
        check_token_ids(nothing, parts.network.vocabulary)
        self._told = tuple(nothing)
        self.device, about_device = device_or_fallback(device)
        self.spec = PolicySpec(
            name=config.type,
            inputs=tuple(source_key(key, renames) for key in config.input_features),
            n_obs_steps=config.n_obs_steps,
            n_action_steps=config.replan_steps,
            language_conditioned=config.language_conditioned and config.instruction is None,
            tasks_with_instruction=tuple(config.instructions or ()),
            device_type=self.device.type,
            max_rows=None if self.device.type == "cpu" else config.pad_to,
            bit_exact=self.device.type == "cpu" or config.pad_to is not None,
            remembers=parts.network.new_episode() is not None,
            steps_per_query=parts.network.steps_per_query,
            notes=(*parts.notes, *parts.network.notes, *([about_device] if about_device else ())),
            warnings=parts.warnings,
        )
        self.network = parts.network.eval().requires_grad_(False).to(self.device)
        self.network.check_preprocessor(parts.preprocessor.steps)
        self.network.cast(pick_dtype(config.dtype))
        self.dtype = self.network.input_dtype
        if config.quantize:
            quantize(self.network)
        if self.device.type == "cpu":
            _use_channels_last(self.network)
        self.preprocessor = parts.preprocessor.on(self.device)
        self.postprocessor = parts.postprocessor.on(torch.device("cpu"))
        if config.compile:
            require_compiler(_COMPILE, self.device)
            compile_parts(self.network.compiled_modules())
        self._behind = {key: source_key(key, renames) for key in parts.postprocessor.needs}
        self._kept = {*self._instruction_encoder.needs, *self._behind.values()}
        graphed = self.network.supports_cuda_graph
        self.runner = make_runner(
            self._forward, self.device, config.pad_to, supports_cuda_graph=graphed
        )

    def new_episode(self, spec: EpisodeSpec) -> Any:
        """Return the state of a new episode; None: stateless."""
        return self.network.new_episode()

    def indistinguishable_tasks(self, tasks: Iterable[Task]) -> tuple[str, str] | None:
        """Return two different instructions with the same encoding; else None."""
        if not self._told:
            return None
        return self._instruction_encoder.find_indistinguishable(
            self._instruction(task) for task in tasks
        )

    def act(self, batch: Batch) -> Array:
        """Return actions [B, n_action_steps, A] in the robot's units."""
        rows = {key: _row_array(batch.observations[key]) for key in self.spec.inputs}
        drawn = [self._draw(query) for query in batch.queries] if self.network.draws else []
        for name in self.network.draws:
            rows[NOISE_KEY + name] = np.stack([one[name] for one in drawn])
        newest = {key: torch.tensor(rows[key][:, -1]) for key in self._kept}
        words = [self._instruction(query.spec.task) for query in batch.queries]
        prompt_inputs = self._instruction_encoder(words, newest)
        check_token_ids(prompt_inputs, self.network.vocabulary)
        rows |= {PROMPT_KEY + name: array for name, array in prompt_inputs.items()}
        for name in self.network.episode_inputs:
            rows[EPISODE_KEY + name] = np.stack([query.state[name] for query in batch.queries])
        parts = self._parts(rows)
        compiled = self.parts.config.compile
        with summarize_compiler_errors(_COMPILE, PolicyError) if compiled else nullcontext():
            chunks = restore_order(parts, [self.runner(part.rows) for part in parts])
        with torch.inference_mode():
            settled = self.network.postprocess(chunks, [query.state for query in batch.queries])
            played = settled[:, : self.parts.config.replan_steps]
            seen = {key: newest[offered] for key, offered in self._behind.items()}
            scaled = played.shape[-1] - self.network.n_raw_actions
            actions = self.postprocessor({ACTION: played[..., :scaled], **seen})[ACTION]
            executed: Array = torch.cat([actions, played[..., scaled:]], -1).numpy()
        return executed

    def warm_up(self, features: Mapping[str, Feature], most: int) -> Iterator[None]:
        """Capture CUDA graphs for batches of up to ``most`` queries, one per step."""

        def rows_of(size: int) -> dict[str, Array]:
            times = size, self.spec.n_obs_steps
            rows = {
                key: _row_array(np.zeros((*times, *feature.shape), feature.dtype))
                for key, feature in features.items()
            }
            for name, (_, shape) in self.network.draws.items():
                rows[NOISE_KEY + name] = np.zeros((size, *shape), np.float32)
            for name, shape in self.network.episode_inputs.items():
                rows[EPISODE_KEY + name] = np.zeros((size, *shape), np.float32)
            rows |= {
                PROMPT_KEY + k: prompt_inputs
                for k, prompt_inputs in self._instruction_encoder.blank_inputs(size).items()
            }
            return self._parts(rows)[0].rows

        return self.runner.warm_up(most, rows_of)

    @property
    def _skips_padding(self) -> bool:
        """Whether prompt padding is cut; not with torch.compile, which recompiles per length."""
        return self.network.skips_padding and not self.parts.config.compile

    def _parts(self, rows: dict[str, Array]) -> list[PromptGroup]:
        """Group the rows of a batch by the length of their prompts."""
        if not self._skips_padding:
            return [PromptGroup(np.arange(len(next(iter(rows.values())))), rows)]
        return group_by_prompt_length(
            rows, PROMPT_KEY + LANGUAGE_MASK, (PROMPT_KEY + LANGUAGE_TOKENS,), self.device
        )

    def _draw(self, query: Query) -> dict[str, Array]:
        """Sample the noise of one query on the CPU, seeded by the query's identity alone."""
        spec = query.spec
        number, early = divmod(query.step, self.parts.config.replan_steps)
        words: tuple[Any, ...] = (spec.seed, spec.task.name, spec.index, number)
        if early:  # queried before the end of its chunk, as with --eval.latency_steps
            words = (*words, early)
        key = hashlib.blake2b(repr(words).encode(), digest_size=8).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(key, "little") >> 1)
        drawn = draw_noise(self.network.draws, generator)
        return {name: values.numpy() for name, values in drawn.items()}

    def _forward(self, rows: dict[str, Tensor]) -> Tensor:
        """Map observations [B, n_obs_steps, ...] to normalised chunks [B, T, A], on the device."""
        draws = {name: rows[NOISE_KEY + name] for name in self.network.draws}
        seen = {key: to_float_image(rows[key]) for key in self.spec.inputs}
        if not self.network.takes_history:
            seen = {key: value[:, -1] for key, value in seen.items()}
        inputs = {k: v.to(self.dtype) for k, v in self.preprocessor(seen).items()}
        inputs |= {name: rows[PROMPT_KEY + name] for name in self._told}
        inputs |= {name: rows[EPISODE_KEY + name] for name in self.network.episode_inputs}
        with autocast(self.device, wanted=self.parts.config.use_amp):
            return self.network.chunk(inputs, draws)

    def _instruction(self, task: Task) -> str:
        """Return the instruction of a task: a flag's, even if empty, or else the task's own."""
        config = self.parts.config
        given = (config.instructions or {}).get(task.name, config.instruction)
        return task.instruction if given is None else given

    def protocol(self) -> dict[str, Any]:
        """Return all that affects the actions: files, resolved config, pipelines, numerics."""
        parts = self.parts
        padding = {"prompts": prompt_padding_rule(self.device)} if self._skips_padding else {}
        return {
            "type": parts.config.type,
            "weights": "from the files" if parts.files else "untrained, drawn by torch from seed 0",
            "files": dict(parts.files),
            "n_obs_steps": parts.config.n_obs_steps,
            "n_action_steps": parts.config.replan_steps,
            "config": defining_config(parts.config),
            "preprocessor": parts.preprocessor.protocol(),
            "postprocessor": parts.postprocessor.protocol(),
            "noise": "torch's generator, keyed by (seed, task name, episode index, query)",
            "numerics": numerics_record(self.device, parts.config.pad_to, amp=parts.config.use_amp)
            | padding,
        }


def _use_channels_last(network: Network) -> None:
    """Store weights of 2-D convolutions channels last.

    On a CPU this makes convolutions and pooling of large images faster.
    """
    for tensor in (*network.parameters(), *network.buffers()):
        if tensor.dim() == 4:
            tensor.data = tensor.data.contiguous(memory_format=torch.channels_last)


def _row_array(values: Array) -> Array:
    """Return images unchanged (uint8 [B, n, H, W, 3]) and everything else as float32."""
    return values if values.dtype == np.uint8 else np.asarray(values, dtype=np.float32)


def to_float_image(value: Tensor) -> Tensor:
    """Convert uint8 images to float in [0, 1] with channels first, on their device.

    Other tensors are returned unchanged.
    """
    if value.dtype != torch.uint8:
        return value
    return value.movedim(-1, -3).to(torch.float32, memory_format=torch.contiguous_format) / 255


def dry_run_steps(
    config: CheckpointConfig,
    preprocessor: Pipeline,
    postprocessor: Pipeline,
    instruction_encoder: InstructionEncoder,
) -> None:
    """Run the pre- and postprocessor on observations, an instruction and an action of zeros."""
    inputs, size = config.input_features, config.action_dim
    shapes = {key: (1, *channels_first(feature)) for key, feature in inputs.items()}
    with _saying("the preprocessor cannot process the policy's inputs"):
        # Not on torch's meta device: its arithmetic loads torch's compiler, which takes seconds.
        renames, cpu = preprocessor.rename_map, torch.device("cpu")
        seen = {source_key(key, renames): torch.zeros(shape) for key, shape in shapes.items()}
        preprocessor.on(cpu)(seen)
    with _saying("the preprocessor cannot encode an instruction"):
        if config.language_conditioned and not instruction_encoder.blank_inputs(1):
            raise UsageError(
                f"{config.type} needs an instruction, but no preprocessor step makes tokens",
                code="checkpoint.missing-tokenizer",
            )
    with _saying(f"the postprocessor cannot process actions of size {size}"):
        beside = {key: torch.zeros(shapes[key]) for key in postprocessor.needs}
        postprocessor.on(cpu)({ACTION: torch.zeros(1, 1, size), **beside})


@contextmanager
def _saying(what: str) -> Iterator[None]:
    try:
        yield
    except ProctorError:
        raise
    except (RuntimeError, ValueError, IndexError, KeyError) as error:
        raise UsageError(
            f"{what}: {strip_control_codes(str(error), 200)}", code="checkpoint.pipeline-mismatch"
        ) from None
