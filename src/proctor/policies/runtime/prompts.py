"""Encode task instructions as arrays for the network, and cut the padding of prompts.

Two sources are combined:

    CheckpointConfig.encode_instruction   encodings without a tokenizer, as in language_act
    Pipeline.encode_prompt                preprocessor steps: new lines, prompts, tokens

A prompt may hold the robot's state. If it does not, each instruction is encoded once and cached.

The tokenizer pads every prompt to the same length. A network that masks padding gives the same
result without it, up to rounding. The length that is kept depends on the row's own prompt alone,
never on the rest of its batch, so an episode does not depend on the load.

    CPU          no padding: rows run one by one, so each may have its own shape
    CUDA, MPS    half of the maximum length, or all of it: one more CUDA graph per batch size.
                 Most instructions fit into half, so most batches stay whole
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from proctor.errors import UsageError
from proctor.features import LANGUAGE_TOKENS, Array
from proctor.fingerprint import ConfigUse
from proctor.policies.compatibility import source_key
from proctor.policies.lerobot.config.config import CheckpointConfig
from proctor.policies.lerobot.processors.processors import Pipeline


class PromptGroup(NamedTuple):
    """Rows whose prompts are cut to the same length."""

    places: Array
    """Indices of the rows in the batch."""
    rows: dict[str, Array]


def group_by_prompt_length(
    rows: dict[str, Array], padding_mask: str, others: Sequence[str], device: torch.device
) -> list[PromptGroup]:
    """Group rows by the length of their prompts, the shortest first.

    ``padding_mask`` is the key of the mask [B, max length], True at tokens; ``others`` are the keys
    of the arrays that are cut like it.
    """
    lengths = _lengths(rows[padding_mask], one_by_one=device.type == "cpu")
    found, parts = np.unique(lengths), []
    for length in found:
        places = np.flatnonzero(lengths == length)
        # Usually there is one length; images are then not copied.
        some = {name: v[places] if len(found) > 1 else v for name, v in rows.items()}
        some |= {name: some[name][:, :length] for name in (padding_mask, *others)}
        parts.append(PromptGroup(places, some))
    return parts


def check_token_ids(prompt_inputs: Mapping[str, Array], vocabulary: int | None) -> None:
    """Refuse token ids outside the network's vocabulary."""
    tokens = prompt_inputs.get(LANGUAGE_TOKENS)
    if tokens is not None and vocabulary is not None and tokens.max() >= vocabulary:
        raise UsageError(
            f"the prompt has token id {tokens.max()}, but the policy's vocabulary has {vocabulary} "
            "tokens: the tokenizer is another model's (name the right one with --policy.tokenizer)",
            code="policy.unknown-token",
        )


def restore_order(parts: Sequence[PromptGroup], made: Sequence[Tensor]) -> Tensor:
    """Concatenate the outputs of all groups, and put the rows back into the batch's order."""
    if len(made) == 1:
        return made[0]
    places = torch.from_numpy(np.concatenate([part.places for part in parts]))
    return torch.cat(list(made))[places.argsort()]


def _lengths(padding_mask: Array, *, one_by_one: bool) -> Array:
    """Return the kept length of each row: up to its last token, at least 1."""
    most = padding_mask.shape[1]
    lengths: Array = np.where(padding_mask.any(1), most - padding_mask[:, ::-1].argmax(1), 1)
    if not one_by_one:
        half = min(most, -(-most // 16) * 8)
        lengths = np.where(lengths <= half, half, most)
    return lengths


def prompt_padding_rule(device: torch.device) -> str:
    """Return how prompts are padded, for the run's record: it affects the last bits."""
    return "without padding" if device.type == "cpu" else "padded to half of the room, or all"


_MOST_INSTRUCTIONS = 4096


class InstructionEncoder:
    """Turns instructions into the network's language inputs, one row each; picklable."""

    def __init__(
        self,
        config: CheckpointConfig,
        preprocessor: Pipeline,
        use: ConfigUse = ConfigUse.EVALUATION,
    ) -> None:
        self._config = config
        self._pipeline = preprocessor.on(torch.device("cpu"))
        self._known: dict[str, dict[str, Array]] = {}
        renames, keys = preprocessor.rename_map, preprocessor.needs
        if use is ConfigUse.TRAINING:
            keys += preprocessor.training_keys
        self.needs = tuple(source_key(key, renames) for key in dict.fromkeys(keys))
        """Observations that prompts need, by the benchmark's names; the newest of each is used."""

    def __call__(self, words: Sequence[str], seen: Mapping[str, Tensor]) -> dict[str, Array]:
        """Return the network's language inputs, [B, ...] each; empty if it has none.

        ``seen`` holds the raw observations of ``needs``, [B, ...] (actions [B, T, A]), on the CPU.
        """
        if self.needs:
            return self._read(words, {key: seen[key] for key in self.needs})
        return _stacked([self._once(text) for text in words])

    def blank_inputs(self, rows: int) -> dict[str, Array]:
        """Return the inputs for empty instructions and zero observations, in the usual shapes."""
        return self([""] * rows, self._blank(rows))

    def _blank(self, rows: int) -> dict[str, Tensor]:
        sizes, renames = self._config.input_features, self._pipeline.rename_map
        shapes = {key: sizes[renames.get(key, key)].shape for key in self.needs}
        return {key: torch.zeros((rows, *shape)) for key, shape in shapes.items()}

    def find_indistinguishable(self, texts: Iterable[str]) -> tuple[str, str] | None:
        """Return two different instructions that have the same encoding; None: there are none.

        White space is ignored when texts are compared.
        """
        first: dict[Hashable, str] = {}
        for text in {" ".join(text.split()): text for text in texts}.values():
            read = self._read([text], self._blank(1)) if self.needs else self._once(text)
            other = first.setdefault(self._config.instruction_key(read), text)
            if other != text:
                return other, text
        return None

    def _once(self, text: str) -> dict[str, Array]:
        if text not in self._known:
            if len(self._known) >= _MOST_INSTRUCTIONS:
                self._known.clear()
            self._known[text] = {name: rows[0] for name, rows in self._read([text], {}).items()}
        return self._known[text]

    def _read(self, words: Sequence[str], seen: dict[str, Tensor]) -> dict[str, Array]:
        own = _stacked([self._config.encode_instruction(text) for text in words])
        return own | self._pipeline.encode_prompt(words, seen)


def _stacked(rows: Sequence[dict[str, Array]]) -> dict[str, Array]:
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}
