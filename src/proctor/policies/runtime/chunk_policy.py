"""The policy the engine sees, whatever network is behind it: observations in, action chunks out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from proctor.errors import PolicyError
from proctor.features import ACTION, LANGUAGE_MASK, LANGUAGE_TOKENS, Array, Feature
from proctor.fingerprint import ConfigUse
from proctor.policies.base import Batch, Policy, PolicySpec, Query
from proctor.policies.compatibility import offered_key
from proctor.policies.latency import check_latency
from proctor.policies.lerobot.adapter import Adapter
from proctor.policies.lerobot.config import CheckpointConfig, definition_of
from proctor.policies.lerobot.processors import Pipeline
from proctor.policies.runtime.compiled import (
    compile_parts,
    compiler_errors_in_one_line,
    require_compiler,
)
from proctor.policies.runtime.dry_run import dry_run_steps
from proctor.policies.runtime.instruction_encoder import InstructionEncoder
from proctor.policies.runtime.network import Network, draw_noise
from proctor.policies.runtime.prompts import (
    PromptGroup,
    by_length,
    check_known,
    in_order,
    prompt_record,
)
from proctor.policies.runtime.quantized import quantize
from proctor.policies.runtime.runner import (
    autocast,
    device_for,
    make_runner,
    numerics,
    pick_dtype,
)
from proctor.types import EpisodeSpec, Task

DRAWN, TOLD, RECALLED = "drawn: ", "told: ", "recalled: "
"""What stands before the names of a network's draws, of what it sees of its task's words, and of
what it recalls of its episode, among the rows that go to the device."""
_COMPILE = "--policy.compile"


@dataclass(frozen=True)
class LoadedCheckpoint:
    """What a checkpoint is made of, once read and checked."""

    config: CheckpointConfig
    network: Network
    prefix: str
    """What stands before the network's own names in model.safetensors."""
    preprocessor: Pipeline
    postprocessor: Pipeline
    files: Mapping[str, str] = field(default_factory=dict)
    """Every file that was read, with its SHA-256; none where the weights are drawn."""
    notes: tuple[str, ...] = ()
    """Lines the user should see once: unknown keys, defaults that had to be guessed."""
    adapter: Adapter | None = None
    """What of the network is trained, where its own weights stay as they are."""

    def instruction_encoder(self, use: ConfigUse) -> InstructionEncoder:
        """Return what makes of a task's words what the network is given."""
        return InstructionEncoder(self.config, self.preprocessor, use)

    @property
    def base(self) -> str | None:
        """Where the policy is that an adapter is for."""
        return None if self.adapter is None else self.adapter.config.base_model_name_or_path


class ChunkPolicy(Policy):
    """Runs a network on its device, with the checkpoint's processing before and after.

    Holds weights and nothing of any episode: observation histories come with the batch, temporal
    ensembles live in the queries' states, and noise is a function of (seed, task, episode, query).
    """

    def __init__(self, parts: LoadedCheckpoint, device: str) -> None:
        config = parts.config
        asked, is_stateful = config.latency_steps or 0, bool(parts.network.recalled)
        check_latency(asked, config.type, config.replan_steps, is_stateful=is_stateful)
        self.parts = parts
        renames = parts.preprocessor.rename_map
        self._instruction_encoder = parts.instruction_encoder(ConfigUse.EVALUATION)
        dry_run_steps(config, parts.preprocessor, parts.postprocessor, self._instruction_encoder)
        nothing = self._instruction_encoder.of_nothing(1)
        check_known(nothing, parts.network.vocabulary)
        self._told = tuple(nothing)
        self.device, about_device = device_for(device)
        self.spec = PolicySpec(
            name=config.type,
            inputs=tuple(offered_key(key, renames) for key in config.input_features),
            n_obs_steps=config.n_obs_steps,
            n_action_steps=config.replan_steps,
            language_conditioned=config.language_conditioned and config.instruction is None,
            worded=tuple(config.instructions or ()),
            computes_on=self.device.type,
            rows_at_once=None if self.device.type == "cpu" else config.pad_to,
            bit_exact=self.device.type == "cpu" or config.pad_to is not None,
            remembers=parts.network.new_episode() is not None,
            asked_every=parts.network.asked_every,
            notes=(*parts.notes, *parts.network.remarks, *([about_device] if about_device else ())),
        )
        self.network = parts.network.eval().requires_grad_(False).to(self.device)
        self.network.equip(parts.preprocessor.steps)
        self.network.cast(pick_dtype(config.dtype))
        self.dtype = self.network.input_dtype
        if config.quantize:
            quantize(self.network)
        if self.device.type == "cpu":
            # A CPU convolves and pools large images faster with the channels innermost.
            self.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.preprocessor = parts.preprocessor.on(self.device)
        self.postprocessor = parts.postprocessor.on(torch.device("cpu"))
        if config.compile:
            require_compiler(_COMPILE, self.device)
            compile_parts(self.network.hot_parts())
        self._behind = {key: offered_key(key, renames) for key in parts.postprocessor.needs}
        self._kept = {*self._instruction_encoder.needs, *self._behind.values()}
        graphed = self.network.graphed
        self.runner = make_runner(self._forward, self.device, config.pad_to, graphed=graphed)

    def new_episode(self, spec: EpisodeSpec) -> Any:
        """Return what a fresh episode remembers, or None where that is nothing."""
        return self.network.new_episode()

    def read_alike(self, tasks: Iterable[Task]) -> tuple[str, str] | None:
        """Return the texts of two tasks that differ and that the network is given the same for."""
        if not self._told:
            return None
        return self._instruction_encoder.alike(self._instruction(task) for task in tasks)

    def act(self, batch: Batch) -> Array:
        """Return actions [B, n_action_steps, A] in the robot's units."""
        rows = {key: _row_array(batch.observations[key]) for key in self.spec.inputs}
        drawn = [self._draw(query) for query in batch.queries] if self.network.draws else []
        for name in self.network.draws:
            rows[DRAWN + name] = np.stack([one[name] for one in drawn])
        newest = {key: torch.tensor(rows[key][:, -1]) for key in self._kept}
        words = [self._instruction(query.spec.task) for query in batch.queries]
        told = self._instruction_encoder(words, newest)
        check_known(told, self.network.vocabulary)
        rows |= {TOLD + name: array for name, array in told.items()}
        for name in self.network.recalled:
            rows[RECALLED + name] = np.stack([query.state[name] for query in batch.queries])
        parts = self._parts(rows)
        compiled = self.parts.config.compile
        with compiler_errors_in_one_line(_COMPILE, PolicyError) if compiled else nullcontext():
            chunks = in_order(parts, [self.runner(part.rows) for part in parts])
        with torch.inference_mode():
            settled = self.network.postprocess(chunks, [query.state for query in batch.queries])
            played = settled[:, : self.parts.config.replan_steps]
            seen = {key: newest[offered] for key, offered in self._behind.items()}
            actions: Array = self.postprocessor({ACTION: played, **seen})[ACTION].numpy()
        return actions

    def warm_up(self, features: Mapping[str, Feature], most: int) -> Iterator[None]:
        """Prepare for batches of up to ``most`` queries, a piece of the work at a time."""

        def rows_of(size: int) -> dict[str, Array]:
            times = size, self.spec.n_obs_steps
            rows = {
                key: _row_array(np.zeros((*times, *feature.shape), feature.dtype))
                for key, feature in features.items()
            }
            for name, (_, shape) in self.network.draws.items():
                rows[DRAWN + name] = np.zeros((size, *shape), np.float32)
            for name, shape in self.network.recalled.items():
                rows[RECALLED + name] = np.zeros((size, *shape), np.float32)
            rows |= {
                TOLD + k: told for k, told in self._instruction_encoder.of_nothing(size).items()
            }
            return self._parts(rows)[0].rows

        return self.runner.warm_up(most, rows_of)

    @property
    def _skips_padding(self) -> bool:
        """Not where it is compiled: for every length anew, and past some lengths not at all."""
        return self.network.skips_padding and not self.parts.config.compile

    def _parts(self, rows: dict[str, Array]) -> list[PromptGroup]:
        """Return rows as they are computed together: those with prompts of one length."""
        if not self._skips_padding:
            return [PromptGroup(np.arange(len(next(iter(rows.values())))), rows)]
        return by_length(rows, TOLD + LANGUAGE_MASK, (TOLD + LANGUAGE_TOKENS,), self.device)

    def _draw(self, query: Query) -> dict[str, Array]:
        """Draw for one query, on the CPU, from what identifies the query and nothing else."""
        spec = query.spec
        number, early = divmod(query.step, self.parts.config.replan_steps)
        words: tuple[Any, ...] = (spec.seed, spec.task.name, spec.index, number)
        if early:  # asked before its chunk was used up, as under --eval.latency_steps
            words = (*words, early)
        key = hashlib.blake2b(repr(words).encode(), digest_size=8).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(key, "little") >> 1)
        drawn = draw_noise(self.network.draws, generator)
        return {name: values.numpy() for name, values in drawn.items()}

    def _forward(self, rows: dict[str, Tensor]) -> Tensor:
        """Observations [B, n_obs_steps, ...] on the device to normalised chunks [B, T, A] there."""
        draws = {name: rows[DRAWN + name] for name in self.network.draws}
        seen = {key: as_float(rows[key]) for key in self.spec.inputs}
        if not self.network.takes_history:
            seen = {key: value[:, -1] for key, value in seen.items()}
        inputs = {k: v.to(self.dtype) for k, v in self.preprocessor(seen).items()}
        inputs |= {name: rows[TOLD + name] for name in self._told}
        inputs |= {name: rows[RECALLED + name] for name in self.network.recalled}
        with autocast(self.device, wanted=self.parts.config.use_amp):
            return self.network.chunk(inputs, draws)

    def _instruction(self, task: Task) -> str:
        """Return the words for a task: those that were given by hand, even if none, or its own."""
        config = self.parts.config
        given = (config.instructions or {}).get(task.name, config.instruction)
        return task.instruction if given is None else given

    def protocol(self) -> dict[str, Any]:
        """Return all that the actions are made by: files, resolved config, pipelines, numerics."""
        parts = self.parts
        told = {"prompts": prompt_record(self.device)} if self._skips_padding else {}
        return {
            "type": parts.config.type,
            "weights": "from the files" if parts.files else "untrained, drawn by torch from seed 0",
            "files": dict(parts.files),
            "n_obs_steps": parts.config.n_obs_steps,
            "n_action_steps": parts.config.replan_steps,
            "config": definition_of(parts.config),
            "preprocessor": parts.preprocessor.protocol(),
            "postprocessor": parts.postprocessor.protocol(),
            "noise": "torch's generator, keyed by (seed, task name, episode index, query)",
            "numerics": numerics(self.device, parts.config.pad_to, amp=parts.config.use_amp) | told,
        }


def _row_array(values: Array) -> Array:
    """Return images as they are (uint8 [B, n, H, W, 3]) and everything else as float32."""
    return values if values.dtype == np.uint8 else np.asarray(values, dtype=np.float32)


def as_float(value: Tensor) -> Tensor:
    """Return images as float [0, 1] with channels first, on the device they are already on.

    Everything that is not uint8 is returned as it is.
    """
    if value.dtype != torch.uint8:
        return value
    return value.movedim(-1, -3).to(torch.float32, memory_format=torch.contiguous_format) / 255
