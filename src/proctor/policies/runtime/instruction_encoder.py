"""Encode task instructions as arrays for the network.

Two sources are combined:

    CheckpointConfig.encode_instruction   encodings without a tokenizer, as in language_act
    Pipeline.encode_prompt                preprocessor steps: new lines, prompts, tokens

A prompt may hold the robot's state. If it does not, each instruction is encoded once and cached.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from proctor.features import Array
from proctor.fingerprint import ConfigUse
from proctor.policies.compatibility import source_key
from proctor.policies.lerobot.config import CheckpointConfig
from proctor.policies.lerobot.processors import Pipeline

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
