"""pi0-FAST (Pertsch et al., 2025): PaliGemma decodes actions as tokens, autoregressively.

    images, prompt, BOS ─▶ PaliGemma ─▶ "Action: " <codes> "|" ─▶ coefficients ─▶ actions

The codes are FAST's (fast.py). Tokens attend to all tokens before them. The KV cache is allocated
for all decoding steps at once, so every step has the same shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

from proctor.features import ACTION_MASK, ACTION_TOKENS, LANGUAGE_MASK, LANGUAGE_TOKENS
from proctor.policies.lerobot.step import ProcessorStep
from proctor.policies.pi0 import sizes
from proctor.policies.pi0.gemma import Place, place
from proctor.policies.pi0.paligemma import PaliGemma, among_all
from proctor.policies.pi0.vision_language import PrefixEncoder
from proctor.policies.pi0_fast.config import Pi0FastConfig
from proctor.policies.pi0_fast.fast import Speech
from proctor.policies.pi0_fast.steps import speech_of
from proctor.policies.runtime.network import NoiseSpec

CHOICE = "choice"


class Pi0Fast(PrefixEncoder):
    """The network; attribute names are those of LeRobot's checkpoints."""

    config: Pi0FastConfig
    graphed = False
    speech: Speech
    """Mapping between actions and tokens; a preprocessor step provides it."""

    def __init__(self, config: Pi0FastConfig) -> None:
        super().__init__()
        self.config = config
        model = PaliGemma(config.paligemma_variant, sizes.TRAINED_SIDE)
        model.language.saves_memory = config.gradient_checkpointing
        self.paligemma_with_expert = nn.ModuleDict({"paligemma": model})
        if config.temperature > 0:
            self.draws = {CHOICE: (NoiseSpec.UNIFORM, (config.max_decoding_steps,))}

    def equip(self, steps: Sequence[ProcessorStep]) -> None:
        """Take the action tokenizer from the preprocessor steps."""
        self.speech = replace(speech_of(steps), skip=self.config.fast_skip_tokens)

    def chunk(self, inputs: dict[str, Tensor], draws: dict[str, Tensor]) -> Tensor:
        """Return decoded token ids [B, max_decoding_steps], padded with zeros.

        ``postprocess`` turns them into actions.
        """
        return self.say(inputs, draws.get(CHOICE)).float()

    @torch.no_grad()
    def say(self, inputs: dict[str, Tensor], choices: Tensor | None = None) -> Tensor:
        """Decode tokens [B, steps] until all rows have ended: greedy, or sampled by ``choices``.

        The BOS token is part of the prompt, which attends to it, as in LeRobot.
        """
        prompt, heard = inputs[LANGUAGE_TOKENS], inputs[LANGUAGE_MASK]
        begin = prompt.new_full((len(prompt), 1), self.speech.begin)
        words = torch.cat([prompt, begin], 1)
        x, there = self.vlm.embed(
            self.look(inputs), words, torch.cat([heard, torch.ones_like(heard[:, :1])], 1)
        )
        size, steps = self.vlm.language.size, self.config.max_decoding_steps
        out, memory = self.vlm.language(x, among_all(there, size))
        said = prompt.new_zeros((len(prompt), steps))
        # The KV cache of all decoding steps is allocated at once.
        room = [(F.pad(k, (0, 0, 0, steps)), F.pad(v, (0, 0, 0, steps))) for k, v in memory]
        known = F.pad(there, (0, steps), value=False)
        first, before = there.shape[1], there.sum(1, keepdim=True)
        ended = torch.zeros_like(heard[:, 0])
        for step in range(steps):
            token = self.choose(out[:, -1], None if choices is None else choices[:, step])
            said[:, step] = token
            ended = ended | (token == self.speech.end)
            if step + 1 == steps or bool(ended.all()):
                break
            mask = F.pad(known, (0, 1), value=True)[:, None, None]  # and itself
            where = place(before + step, mask, size)
            out, own = self.vlm.language(self.vlm.language.embed(token[:, None]), where, room)
            slot = first + step
            for (keys, values), (key, value) in zip(room, own, strict=True):
                keys[:, :, slot : slot + 1], values[:, :, slot : slot + 1] = key, value
            known[:, slot] = True
        return said

    def choose(self, out: Tensor, choice: Tensor | None) -> Tensor:
        """Return the next token [B] after ``out`` [B, width].

        ``choice`` [B] from 0 to 1 samples it by the inverse of the cumulative distribution.
        """
        logits: Tensor = self.vlm.lm_head(out)
        if choice is None:
            return logits.argmax(-1)
        chances = (logits.float() / self.config.temperature).softmax(-1)
        total = chances.double().cumsum(-1)
        at = torch.searchsorted(total, (choice.double() * total[:, -1])[:, None], right=True)
        return at[:, 0].clamp(max=logits.shape[-1] - 1)

    def postprocess(self, chunks: Tensor, states: list[Any]) -> Tensor:
        """Return the actions [B, n_action_steps, A] of decoded tokens."""
        shape = self.config.n_action_steps, self.config.action_dim
        strict = self.config.validate_action_token_prefix
        actions = [self.speech.actions(row.long().tolist(), shape, strict=strict) for row in chunks]
        return torch.stack([torch.from_numpy(each) for each in actions])

    def loss(
        self, batch: dict[str, Tensor], draws: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the mean cross-entropy of the demonstrated actions' tokens."""
        tokens, real = batch[ACTION_TOKENS], batch[ACTION_MASK]
        logits = self.logits(batch, tokens, real).float()
        surprise = F.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none")
        counted = real[:, 1:]
        loss = (surprise * counted).sum() / counted.sum().clamp(min=1)
        return loss, {"ce_loss": loss.detach()}

    def logits(self, inputs: dict[str, Tensor], tokens: Tensor, real: Tensor) -> Tensor:
        """Return next-token logits [B, n - 1, V] for action tokens [B, n]."""
        words = torch.cat([inputs[LANGUAGE_TOKENS], tokens], 1)
        heard = torch.cat([inputs[LANGUAGE_MASK], real], 1)
        x, there = self.vlm.embed(self.look(inputs), words, heard)
        out, _ = self.vlm.language(x, self.where(there, tokens.shape[1]))
        said: Tensor = self.vlm.lm_head(out[:, -tokens.shape[1] : -1])
        return said

    def where(self, there: Tensor, n_said: int) -> Place:
        """Return positions and mask: action tokens are causal, and the prompt ignores them."""
        n = there.shape[1]
        prompt = n - n_said
        sees = there.new_ones(n, n).tril()
        sees[:prompt, :prompt] = True
        return place(there.cumsum(1) - 1, (sees & there[:, None])[:, None], self.vlm.language.size)

    def hot_parts(self) -> list[nn.Module]:
        """Return all layers, each compiled on its own."""
        return [*self.vlm.tower.layers, *self.vlm.language.layers]
