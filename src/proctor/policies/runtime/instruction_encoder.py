"""What a network is told of its task: words, and where its prompt says so the state, as arrays.

    policy's config   CheckpointConfig.read(words): words without a tokenizer, as in language_act
    its preprocessor  Pipeline.hear(words, seen): new lines, prompts, tokens, whatever steps tell

Where words alone decide, each instruction is read once.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from proctor.features import Array
from proctor.fingerprint import ConfigUse
from proctor.policies.compatibility import offered_key
from proctor.policies.lerobot.config import CheckpointConfig
from proctor.policies.lerobot.processors import Pipeline

_MOST_INSTRUCTIONS = 4096


class InstructionEncoder:
    """Makes of instructions what a network is given, a row each; goes to other processes too."""

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
            keys += preprocessor.learns_from
        self.needs = tuple(offered_key(key, renames) for key in dict.fromkeys(keys))
        """What has to be seen beside the words, by the observations' own names: the newest."""

    def __call__(self, words: Sequence[str], seen: Mapping[str, Tensor]) -> dict[str, Array]:
        """Return what the network is given, [B, ...] each; nothing where it is not told its task.

        ``seen`` holds what ``needs`` names, raw, [B, ...] (actions [B, T, A]) on the CPU.
        """
        if self.needs:
            return self._read(words, {key: seen[key] for key in self.needs})
        return _stacked([self._once(text) for text in words])

    def of_nothing(self, rows: int) -> dict[str, Array]:
        """Return what the network would be given for no words and zeros: the same shapes."""
        return self([""] * rows, self._blank(rows))

    def _blank(self, rows: int) -> dict[str, Tensor]:
        sizes, renames = self._config.input_features, self._pipeline.rename_map
        shapes = {key: sizes[renames.get(key, key)].shape for key in self.needs}
        return {key: torch.zeros((rows, *shape)) for key, shape in shapes.items()}

    def alike(self, texts: Iterable[str]) -> tuple[str, str] | None:
        """Return two of ``texts`` that differ, and that the network is given the same for.

        Texts that differ in white space only are the same.
        """
        first: dict[Hashable, str] = {}
        for text in {" ".join(text.split()): text for text in texts}.values():
            read = self._read([text], self._blank(1)) if self.needs else self._once(text)
            other = first.setdefault(self._config.text_key(read), text)
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
        own = _stacked([self._config.read(text) for text in words])
        return own | self._pipeline.hear(words, seen)


def _stacked(rows: Sequence[dict[str, Array]]) -> dict[str, Array]:
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}
