"""SmolVLA (Shukor et al., 2025): a small vision-language model with an action expert.

    images ─▶ SigLIP ─▶ tokens ┐
    instruction ─▶ tokens ─────┤▶ language model ─▶ KV cache of every layer, once per query
    state ─▶ token ────────────┘                        ▼
    noisy actions, time ─▶ tokens ─────────▶ expert, causal ─▶ velocity ─▶ Euler steps to actions

Flow matching: x_t = t noise + (1 - t) actions, and the velocity is noise - actions. Prefix tokens
never attend to action tokens, so training and inference compute them in the same way. B is the
batch, T the chunk, A the padded action size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

from proctor.features import ACTION, LANGUAGE_MASK, LANGUAGE_TOKENS, STATE
from proctor.policies.blocks.layers import masked_mean, resize_with_padding
from proctor.policies.blocks.rtc import GuidedNetwork
from proctor.policies.blocks.siglip import ScaledPatchEmbeddings, SiglipEncoder
from proctor.policies.lerobot.checkpoint.location import local_folder
from proctor.policies.lerobot.checkpoint.tensor_file import read_tensors
from proctor.policies.lerobot.checkpoint.weights import WEIGHTS_FILE, check_tensor
from proctor.policies.lerobot.config.mixins import read_rtc
from proctor.policies.runtime.network import NoiseSpec
from proctor.policies.smolvla import aloha
from proctor.policies.smolvla.config import SmolVlaConfig
from proctor.policies.smolvla.layers import (
    ActionExpert,
    Connector,
    ExpertCache,
    LlamaModel,
    additive_mask,
    joint_layers,
    rotary_embedding,
)
from proctor.policies.smolvla.vlm import VlmSizes, read_vlm_sizes
from proctor.system.hub.repositories import download

NOISE, TIME = "noise", "time"
EMBEDDINGS = "model.text_model.embed_tokens"


class SmolVla(GuidedNetwork):
    """The network; attribute names are those of LeRobot's checkpoints."""

    takes_history = False
    adapter_targets = (
        r"(model\.vlm_with_expert\.lm_expert\..*\.(q|v)_proj|model\.(state_proj|action_in_proj|"
        r"action_out_proj|action_time_mlp_in|action_time_mlp_out))"
    )

    def __init__(self, config: SmolVlaConfig, sizes: VlmSizes | None = None) -> None:
        super().__init__()
        self.config = config
        sizes = sizes or read_vlm_sizes(config.vlm_model_name)
        self.vlm_with_expert = VlmWithExpert(config, sizes)
        width, narrow = sizes.text_config.hidden_size, self.vlm_with_expert.width
        self.state_proj = nn.Linear(config.max_state_dim, width)
        self.action_in_proj = nn.Linear(config.max_action_dim, narrow)
        self.action_out_proj = nn.Linear(narrow, config.max_action_dim)
        self.action_time_mlp_in = nn.Linear(2 * narrow, narrow)
        self.action_time_mlp_out = nn.Linear(narrow, narrow)
        self.head = sizes.text_config.head
        self.groups = self.vlm_with_expert.lm_expert.groups
        self._check_image_sizes(sizes.granularity)
        chunk = (config.chunk_size, config.max_action_dim)
        self.use_guidance(read_rtc(config.rtc_config), config, config.chunk_size)
        self.draws = {NOISE: (NoiseSpec.NORMAL, chunk)}
        self.loss_draws = {NOISE: (NoiseSpec.NORMAL, chunk), TIME: (NoiseSpec.UNIFORM, ())}
        self._freeze()

    @property
    def vocabulary(self) -> int:
        """Size of the token embedding table."""
        return self.vlm_with_expert.vlm.model.text_model.embed_tokens.num_embeddings

    def _check_image_sizes(self, side: int) -> None:
        """Refuse images that are not square or do not divide into patches and tokens."""
        size = self.config.resize_imgs_with_padding
        seen = [self.config.input_features[key].shape[:2] for key in self.config.cameras]
        for height, width in seen if size is None else [(size[1], size[0])]:
            if height != width or height % side:
                raise ValueError(
                    f"images are {height}x{width}; expected squares of a multiple of {side} "
                    "(resize_imgs_with_padding)"
                )

    def _freeze(self) -> None:
        """Freeze unused layers, and the parts that the config names, as LeRobot does."""
        config, both = self.config, self.vlm_with_expert
        if config.freeze_vision_encoder:
            both.vlm.model.vision_model.requires_grad_(False)
        if config.train_expert_only:
            both.vlm.requires_grad_(False)
        text = both.vlm.model.text_model
        for module in (both.vlm.lm_head, text.norm, text.layers[-1]):  # their outputs are not used
            module.requires_grad_(False)
        self.state_proj.requires_grad_(config.train_state_proj)

    def remap_state_dict(self, stored: dict[str, Tensor]) -> dict[str, Tensor]:
        """Use the token embeddings as language-model head if a file has none."""
        words, writes = (f"vlm_with_expert.vlm.{name}.weight" for name in (EMBEDDINGS, "lm_head"))
        return stored if words not in stored else {writes: stored[words], **stored}

    def cast(self, dtype: torch.dtype | None) -> None:
        """Cast to ``dtype``, by default to float32 whatever dtype a file has, as LeRobot does."""
        super().cast(dtype or torch.float32)

    def load_pretrained(self) -> None:
        """Load the vision-language model's pretrained weights if the config asks for them."""
        if self.config.load_vlm_weights:
            load_vlm(self.vlm_with_expert.vlm, self.config.vlm_model_name)

    def chunk(self, inputs: dict[str, Tensor], draws: dict[str, Tensor]) -> Tensor:
        """Return the actions [B, T, action]."""
        if self.config.adapt_to_pi_aloha:
            inputs = {**inputs, STATE: aloha.decode_state(inputs[STATE])}
        actions = self.sample(self.prefill(inputs), draws[NOISE].float(), inputs)
        actions = actions[..., : self.config.action_dim]
        return aloha.encode_actions(actions) if self.config.adapt_to_pi_aloha else actions

    def postprocess(self, chunks: Tensor, states: list[Any]) -> Tensor:
        """With real-time chunking, store the rest of each chunk for the episode's next query."""
        adapt = self.config.adapt_to_pi_aloha
        super().postprocess(aloha.decode_actions(chunks) if adapt else chunks, states)
        return chunks

    def sample(
        self, cache: ExpertCache, noise: Tensor, episode_inputs: Mapping[str, Tensor]
    ) -> Tensor:
        """Integrate from ``noise`` [B, T, A] to actions by Euler steps from time 1 to 0.

        ``episode_inputs`` holds the rest of the previous chunks, for real-time chunking.
        """
        n = self.config.num_steps
        steps = torch.arange(n, dtype=_fine(noise.device), device=noise.device)
        times = self.embed_time((1.0 + steps * (-1.0 / n)).float())
        x = noise
        for number in range(n):
            velocity = self.velocity(x, times[number], cache)
            if self.guide is not None:
                velocity = self.guide.bend(velocity, x, 1.0 - number / n, episode_inputs)
            x = x + (-1.0 / n) * velocity
        return x

    def velocity(self, x: Tensor, time: Tensor, cache: ExpertCache) -> Tensor:
        """Return the velocity [B, T, A] at ``x`` and at embedded times [width] or [B, 1, width]."""
        suffix = self.vlm_with_expert.lm_expert(self.embed_suffix(x, time), cache)
        velocity: Tensor = self.action_out_proj(suffix)
        return velocity.float()

    def embed_suffix(self, x: Tensor, time: Tensor) -> Tensor:
        """Return action tokens [B, T, width]: noisy actions mixed with the time by an MLP."""
        actions = self.action_in_proj(x.to(self.action_in_proj.weight.dtype))
        both = torch.cat([actions, time.to(actions.dtype).expand_as(actions)], -1)
        tokens: Tensor = self.action_time_mlp_out(F.silu(self.action_time_mlp_in(both)))
        return tokens

    def embed_time(self, times: Tensor) -> Tensor:
        """Return the sinusoidal embedding [N, width] of ``times`` [N]."""
        half, fine = self.vlm_with_expert.width // 2, _fine(times.device)
        place = torch.linspace(0.0, 1.0, half, dtype=fine, device=times.device)
        shortest, longest = self.config.min_period, self.config.max_period
        period = shortest * (longest / shortest) ** place
        angle = (1.0 / period * 2 * math.pi) * times[:, None].to(fine)
        return torch.cat([angle.sin(), angle.cos()], 1).float()

    def prefill(self, inputs: dict[str, Tensor]) -> ExpertCache:
        """Encode the prefix; return the KV cache for the expert."""
        tokens, valid = self.embed_prefix(inputs)
        alone = torch.arange(valid.shape[1], device=valid.device) == valid.shape[1] - 1
        # The state token is the last: it attends to all, and the others do not attend to it.
        allowed = valid[:, None] & (alone[:, None] | ~alone)
        rope = rotary_embedding(valid.cumsum(1) - 1, self.head)
        both = self.vlm_with_expert
        seen = both.vlm.model.text_model(tokens, rope, additive_mask(allowed, self.groups))
        return both.lm_expert.make_cache(seen, valid, self.config.chunk_size)

    def embed_prefix(self, inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return tokens [B, P, width] of images, prompt and state, and their padding mask."""
        seen = [self.preprocess_images(inputs[key]) for key in self.config.cameras if key in inputs]
        model = self.vlm_with_expert.vlm.model
        images = torch.stack(seen, 1)  # [B, cameras, 3, H, W]
        patches = model.connector(model.vision_model(images.flatten(0, 1)))
        patches = patches.unflatten(0, images.shape[:2]).flatten(1, 2)
        words = model.text_model.embed_tokens(inputs[LANGUAGE_TOKENS])
        state = F.pad(inputs[STATE], (0, self.config.max_state_dim - inputs[STATE].shape[-1]))
        scale = math.sqrt(words.shape[-1])
        state_token = self.state_proj(state.to(self.state_proj.weight.dtype))[:, None].to(
            words.dtype
        )
        tokens = [patches.to(words.dtype) * scale, words * scale, state_token]
        here = torch.ones(tokens[0].shape[:2], dtype=torch.bool, device=words.device)
        valid = torch.cat([here, inputs[LANGUAGE_MASK], here[:, :1]], 1)
        return torch.cat(tokens, 1), valid

    def preprocess_images(self, images: Tensor) -> Tensor:
        """Resize images [B, 3, H, W] in [0, 1] with padding, and scale them to [-1, 1]."""
        size = self.config.resize_imgs_with_padding
        if size is not None:
            images = resize_with_padding(images, height=size[1], width=size[0])
        dtype = self.vlm_with_expert.vlm.model.vision_model.post_layernorm.weight.dtype
        return (images * 2.0 - 1.0).to(dtype)

    def loss(
        self, batch: dict[str, Tensor], draws: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the squared error of the velocity at random times.

        Padded steps and dimensions do not count.
        """
        config, noise = self.config, draws[NOISE]
        actions = batch[ACTION]
        if config.adapt_to_pi_aloha:
            batch = {**batch, STATE: aloha.decode_state(batch[STATE])}
            actions = aloha.decode_actions(actions)
        # Inverse CDF of Beta(1.5, 1).
        time = draws[TIME] ** (1 / 1.5) * 0.999 + 0.001
        errors = self.errors(batch, actions, noise, time)[..., : actions.shape[-1]]
        return masked_mean(errors, batch["action_is_pad"]), {}

    def errors(
        self, batch: dict[str, Tensor], actions: Tensor, noise: Tensor, time: Tensor
    ) -> Tensor:
        """Return the squared errors [B, T, A] of the velocity at ``time`` [B]."""
        target = F.pad(actions, (0, self.config.max_action_dim - actions.shape[-1]))
        t = time[:, None, None]
        x = t * noise + (1 - t) * target
        found = self.velocity(x, self.embed_time(time)[:, None], self.prefill(batch))
        return F.mse_loss(found, noise - target, reduction="none")

    def compiled_modules(self) -> list[nn.Module]:
        """Return expert, language model and vision encoder."""
        both = self.vlm_with_expert
        return [both.lm_expert, both.vlm.model.text_model, both.vlm.model.vision_model]


class VlmWithExpert(nn.Module):
    """The vision-language model and the action expert."""

    def __init__(self, config: SmolVlaConfig, sizes: VlmSizes) -> None:
        super().__init__()
        text = sizes.text_config
        kept = config.num_vlm_layers
        self.n_layers = min(kept, text.num_hidden_layers) if kept > 0 else text.num_hidden_layers
        self.width = int(text.hidden_size * config.expert_width_multiplier)
        if config.num_expert_layers not in (*range(-1, 1), self.n_layers):
            raise ValueError(  # LeRobot builds such a network and then fails to run it
                f"num_expert_layers is {config.num_expert_layers} (choose -1, or {self.n_layers})"
            )
        every = config.self_attn_every_n_layers
        joint = joint_layers(config.attention_mode, every, self.n_layers)
        self.vlm = Vlm(sizes, self.n_layers)
        self.lm_expert = ActionExpert(self.width, text, joint)


class Vlm(nn.Module):
    """The vision-language model; its language-model head is not used."""

    def __init__(self, sizes: VlmSizes, n_layers: int) -> None:
        super().__init__()
        text = sizes.text_config
        self.model = VlmParts(sizes, n_layers)
        self.lm_head = nn.Linear(text.hidden_size, text.vocab_size, bias=False)


class VlmParts(nn.Module):
    """Vision encoder, connector and language model."""

    def __init__(self, sizes: VlmSizes, n_layers: int) -> None:
        super().__init__()
        self.vision_model = SiglipEncoder(sizes.vision_config, ScaledPatchEmbeddings)
        self.connector = Connector(sizes)
        self.text_model = LlamaModel(sizes.text_config, n_layers)


def _fine(device: torch.device) -> torch.dtype:
    """Return float64, or float32 on Apple's GPUs, which have no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def load_vlm(vlm: nn.Module, name: str) -> None:
    """Load the weights of the model ``name``, a local folder or a Hub id, into ``vlm``.

    Layers that ``vlm`` does not have are skipped.
    """
    folder = local_folder(name) or download(name, None, ["config.json", WEIGHTS_FILE])
    file = folder / WEIGHTS_FILE
    found, wanted = read_tensors(file), vlm.state_dict()
    for key, expected in wanted.items():
        check_tensor(key, expected, found.get(key), str(file))
    vlm.load_state_dict({key: found[key] for key in wanted})
