"""What pi0 and its relatives share: PaliGemma in a network, and how its weights are held."""

from __future__ import annotations

import re

import torch
from torch import Tensor, nn

from proctor.policies.pi0.config import PiConfig
from proctor.policies.pi0.paligemma import PaliGemma
from proctor.policies.runtime.network import Network

_HALVED = re.compile(
    r"lm_head|embed_tokens|(language_model|gemma_expert\.model)\.layers\.\d+\.(self_attn|mlp)\."
)
"""Names of what is bfloat16 where that is asked for; LeRobot leaves all else in float32."""
_MODEL = "paligemma_with_expert.paligemma."
_HEAD, _TABLE = f"{_MODEL}lm_head.weight", f"{_MODEL}model.language_model.embed_tokens.weight"


class Seeing(Network):
    """A network that sees and reads with PaliGemma."""

    takes_history = False
    skips_padding = True
    config: PiConfig
    paligemma_with_expert: nn.ModuleDict

    @property
    def vlm(self) -> PaliGemma:
        """What sees and reads."""
        model: PaliGemma = self.paligemma_with_expert["paligemma"]  # type: ignore[assignment]
        return model

    @property
    def vocabulary(self) -> int:
        """As many as it has vectors for."""
        return self.vlm.language.embed_tokens.num_embeddings

    def look(self, inputs: dict[str, Tensor]) -> list[Tensor]:
        """Return the tokens of every camera; one that is not there is not looked at.

        LeRobot looks at a black picture there and masks it: the numbers are the same.
        """
        cameras = [inputs[key] for key in self.config.cameras if key in inputs]
        return self.vlm.look(cameras, self.config.side)

    def adopt(self, stored: dict[str, Tensor]) -> dict[str, Tensor]:
        """Let the table of words be the head where a file has only one of them, as published."""
        for name, other in ((_TABLE, _HEAD), (_HEAD, _TABLE)):
            if name not in stored and other in stored:
                stored = {**stored, name: stored[other]}
        return stored

    def cast(self, dtype: torch.dtype | None) -> None:
        """Hold the large matrices in ``dtype``, and all else in float32."""
        for name, tensor in [*self.named_parameters(), *self.named_buffers()]:
            wanted = dtype or tensor.dtype
            tensor.data = tensor.data.to(wanted if _HALVED.search(name) else torch.float32)

    @property
    def input_dtype(self) -> torch.dtype:
        """Always float32: so is what looks."""
        return torch.float32

    def remarks_on_training(self, steps: int) -> tuple[str, ...]:
        """Say what differences are normalised by, and whether grippers are told from joints."""
        config = self.config
        if not config.use_relative_actions:
            return ()
        known = config.action_feature_names is not None
        mute = "the dataset does not name the numbers of an action: all of them are differences"
        return (
            "actions are learnt as differences from the state, and normalised by the dataset's "
            "statistics of actions: work these out of differences",
            *(() if known or not config.relative_exclude_joints else (mute,)),
        )

    def begin_training(self) -> None:
        """Learn in what the config says; the head and the table of words are two."""
        self.cast({"float32": torch.float32, "bfloat16": torch.bfloat16}[self.config.dtype])
        table = self.vlm.language.embed_tokens.weight
        if table.data_ptr() == self.vlm.lm_head.weight.data_ptr():
            table.data = table.data.clone()
