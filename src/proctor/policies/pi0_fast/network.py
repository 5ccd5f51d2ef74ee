"""pi0-FAST (Pertsch et al., 2025): PaliGemma decodes actions as tokens, autoregressively.

    images, prompt, BOS ─▶ PaliGemma ─▶ "Action: " <codes> "|" ─▶ coefficients ─▶ actions

The codes are FAST's (fast.py). Each token attends to all tokens before it. The KV cache is
allocated for all decoding steps at once, so every step has the same shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

from proctor.features import ACTION_MASK, ACTION_TOKENS, LANGUAGE_MASK, LANGUAGE_TOKENS
from proctor.policies.lerobot.processors.step import ProcessorStep
from proctor.policies.pi0 import sizes
from proctor.policies.pi0.gemma import TokenPositions, token_positions
from proctor.policies.pi0.paligemma import PaliGemma, PrefixEncoder, bidirectional_positions
from proctor.policies.pi0_fast.config import Pi0FastConfig
from proctor.policies.pi0_fast.fast import ActionTokenizer
from proctor.policies.pi0_fast.steps import find_action_tokenizer
from proctor.policies.runtime.network import NoiseSpec

CHOICE = "choice"


class Pi0Fast(PrefixEncoder):
    """The network; attribute names are those of LeRobot's checkpoints."""

    config: Pi0FastConfig
    supports_cuda_graph = False
    action_tokenizer: ActionTokenizer
    """Maps actions to tokens and back; a preprocessor step provides it."""

    def __init__(self, config: Pi0FastConfig) -> None:
        super().__init__()
        self.config = config
        model = PaliGemma(config.paligemma_variant, sizes.TRAINED_SIDE)
        model.language.saves_memory = config.gradient_checkpointing
        self.paligemma_with_expert = nn.ModuleDict({"paligemma": model})
        if config.temperature > 0:
            self.draws = {CHOICE: (NoiseSpec.UNIFORM, (config.max_decoding_steps,))}

    def check_preprocessor(self, steps: Sequence[ProcessorStep]) -> None:
        """Take the action tokenizer from the preprocessor steps."""
        self.action_tokenizer = replace(
            find_action_tokenizer(steps), skip=self.config.fast_skip_tokens
        )

    def chunk(self, inputs: dict[str, Tensor], draws: dict[str, Tensor]) -> Tensor:
        """Return generated token ids [B, max_decoding_steps], padded with zeros.

        ``postprocess`` decodes them to actions.
        """
        return self.generate(inputs, draws.get(CHOICE)).float()

    @torch.no_grad()
    def generate(self, inputs: dict[str, Tensor], uniforms: Tensor | None = None) -> Tensor:
        """Generate tokens [B, steps] until all rows have ended.

        Decoding is greedy, or sampled by the uniform numbers ``uniforms`` [B, steps]. The BOS token
        is part of the prompt, which attends to it, as in LeRobot.
        """
        prompt, prompt_mask = inputs[LANGUAGE_TOKENS], inputs[LANGUAGE_MASK]
        begin = prompt.new_full((len(prompt), 1), self.action_tokenizer.begin)
        tokens_in = torch.cat([prompt, begin], 1)
        mask = torch.cat([prompt_mask, torch.ones_like(prompt_mask[:, :1])], 1)
        x, valid = self.vlm.embed(self.encode_images(inputs), tokens_in, mask)
        size, steps = self.vlm.language.size, self.config.max_decoding_steps
        out, cache = self.vlm.language(x, bidirectional_positions(valid, size))
        generated = prompt.new_zeros((len(prompt), steps))
        # The KV cache of all decoding steps is allocated at once.
        full_cache = [(F.pad(k, (0, 0, 0, steps)), F.pad(v, (0, 0, 0, steps))) for k, v in cache]
        visible = F.pad(valid, (0, steps), value=False)
        first, before = valid.shape[1], valid.sum(1, keepdim=True)
        ended = torch.zeros_like(prompt_mask[:, 0])
        for step in range(steps):
            token = self.sample_token(out[:, -1], None if uniforms is None else uniforms[:, step])
            generated[:, step] = token
            ended = ended | (token == self.action_tokenizer.end)
            if step + 1 == steps or bool(ended.all()):
                break
            mask = F.pad(visible, (0, 1), value=True)[:, None, None]  # and itself
            positions = token_positions(before + step, mask, size)
            embedded = self.vlm.language.embed(token[:, None])
            out, own = self.vlm.language(embedded, positions, full_cache)
            slot = first + step
            for (keys, values), (key, value) in zip(full_cache, own, strict=True):
                keys[:, :, slot : slot + 1], values[:, :, slot : slot + 1] = key, value
            visible[:, slot] = True
        return generated

    def sample_token(self, out: Tensor, uniform: Tensor | None) -> Tensor:
        """Return the next token [B] for the last hidden state ``out`` [B, width].

        It is the most likely token, or sampled by inverting the cumulative distribution at
        ``uniform`` [B].
        """
        logits: Tensor = self.vlm.lm_head(out)
        if uniform is None:
            return logits.argmax(-1)
        chances = (logits.float() / self.config.temperature).softmax(-1)
        total = chances.double().cumsum(-1)
        at = torch.searchsorted(total, (uniform.double() * total[:, -1])[:, None], right=True)
        return at[:, 0].clamp(max=logits.shape[-1] - 1)

    def postprocess(self, chunks: Tensor, states: list[Any]) -> Tensor:
        """Return the actions [B, n_action_steps, A] of generated tokens."""
        shape = self.config.n_action_steps, self.config.action_dim
        strict = self.config.validate_action_token_prefix
        actions = [
            self.action_tokenizer.actions(row.long().tolist(), shape, strict=strict)
            for row in chunks
        ]
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
        tokens_in = torch.cat([inputs[LANGUAGE_TOKENS], tokens], 1)
        prompt_mask = torch.cat([inputs[LANGUAGE_MASK], real], 1)
        x, valid = self.vlm.embed(self.encode_images(inputs), tokens_in, prompt_mask)
        out, _ = self.vlm.language(x, self.attention_layout(valid, tokens.shape[1]))
        logits: Tensor = self.vlm.lm_head(out[:, -tokens.shape[1] : -1])
        return logits

    def attention_layout(self, valid: Tensor, n_action_tokens: int) -> TokenPositions:
        """Return positions and mask: causal for action tokens, bidirectional within the prompt."""
        n = valid.shape[1]
        prompt = n - n_action_tokens
        allowed = valid.new_ones(n, n).tril()
        allowed[:prompt, :prompt] = True
        return token_positions(
            valid.cumsum(1) - 1, (allowed & valid[:, None])[:, None], self.vlm.language.size
        )

    def compiled_modules(self) -> list[nn.Module]:
        """Return all layers, each compiled on its own."""
        return [*self.vlm.tower.layers, *self.vlm.language.layers]
