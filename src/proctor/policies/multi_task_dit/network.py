"""Multi-task diffusion transformer: denoises actions, conditioned on observations and instruction.

    state ─────────────────────────────────┐
    images ─▶ CLIP ─▶ class token ─────────┤ of each observed step
    text ─▶ CLIP (frozen) ─▶ projection ───┴▶ condition ─▶ transformer ─▶ noise or velocity
                                               noisy actions ──┘  ▲
                                                            time ─┘

Two objectives: diffusion (as in Diffusion Policy) and flow matching, which integrates a velocity.
The caller passes the noise in, so a chunk is a function of observations, instruction and noise. B
is the batch, T the horizon, A the action size, O the number of observed steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

from proctor.errors import UsageError
from proctor.features import ACTION, LANGUAGE_MASK, LANGUAGE_TOKENS, STATE
from proctor.policies.blocks.clip import ClipTextModel, ClipVisionModel
from proctor.policies.blocks.encoder_sizes import clip_sizes
from proctor.policies.blocks.layers import masked_mean
from proctor.policies.blocks.rgb_encoder import encode_history, resize_and_crop
from proctor.policies.blocks.schedule import NoiseSchedule
from proctor.policies.lerobot.checkpoint.location import locate
from proctor.policies.lerobot.checkpoint.weights import load_submodule, read_weight_files
from proctor.policies.lerobot.processors.step import ProcessorStep
from proctor.policies.lerobot.tokenizer.language import check_prompt_length
from proctor.policies.multi_task_dit.config import DitConfig
from proctor.policies.multi_task_dit.transformer import NoisePredictor
from proctor.policies.runtime.network import LR_MULTIPLIER, Network, NoiseSpec

NOISE, TIME, CROP = "noise", "time", "crop"
_VISION = "observation_encoder.vision_encoder"


class Dit(Network):
    """The network; attribute names are those of LeRobot's checkpoints."""

    takes_history = True

    def __init__(self, config: DitConfig) -> None:
        super().__init__()
        self.config = config
        self.observation_encoder = ObservationEncoder(config)
        self.noise_predictor = NoisePredictor(config, self.observation_encoder.size)
        self.schedule = NoiseSchedule(config) if config.objective == "diffusion" else None
        chunk = (config.horizon, config.action_dim)
        n_noises = 1 if self.schedule is None else self.schedule.n_noises
        self.draws = {NOISE: (NoiseSpec.NORMAL, (n_noises, *chunk))}
        self.loss_draws = {NOISE: (NoiseSpec.NORMAL, chunk), TIME: (NoiseSpec.UNIFORM, ())}
        if config.crop is not None and config.image_crop_is_random:
            self.loss_draws[CROP] = (NoiseSpec.UNIFORM, (len(config.cameras), 2))

    @property
    def vocabulary(self) -> int:
        """Vocabulary size of CLIP's text encoder."""
        return self.observation_encoder.text_encoder.text_encoder.sizes.vocab_size

    def check_preprocessor(self, steps: Sequence[ProcessorStep]) -> None:
        """Check that prompts fit CLIP's position embeddings."""
        sizes = self.observation_encoder.text_encoder.text_encoder.sizes
        check_prompt_length(steps, sizes.max_position_embeddings)

    def load_pretrained(self) -> None:
        """Load the pretrained weights of both CLIP encoders, as LeRobot does."""
        if not self.config.load_clip_weights:
            return
        for part in self.observation_encoder.modules():
            if isinstance(part, Clip):
                part.load_pretrained()

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Return two groups: the image encoder has a lower learning rate."""
        trained = [(name, p) for name, p in self.named_parameters() if p.requires_grad]
        slow = self.config.vision_encoder_lr_multiplier
        return [
            {"params": [p for name, p in trained if _VISION not in name]},
            {"params": [p for name, p in trained if _VISION in name], LR_MULTIPLIER: slow},
        ]

    def chunk(self, inputs: dict[str, Tensor], draws: dict[str, Tensor]) -> Tensor:
        """Return the actions [B, T - O + 1, A] from the newest observation on."""
        sampled = self.sample(self.observation_encoder(inputs), draws[NOISE])
        return sampled[:, self.config.n_obs_steps - 1 :]

    def sample(self, condition: Tensor, noise: Tensor) -> Tensor:
        """Denoise ``noise[:, 0]`` into actions [B, T, A]; DDPM uses the rest, one per step."""
        modulation = self.noise_predictor.condition_modulation(condition)

        def predicted(x: Tensor, time: float) -> Tensor:
            times = torch.full((len(x),), time, device=x.device)
            found: Tensor = self.noise_predictor(x.to(condition.dtype), times, modulation).float()
            return found

        if self.schedule is None:
            return self._integrate(noise[:, 0], predicted)
        return self.schedule.sample(predicted, noise)

    def _integrate(self, x: Tensor, velocity: Any) -> Tensor:
        """Integrate a velocity from time 0 to 1, by Euler or fourth-order Runge-Kutta."""
        steps = self.config.num_integration_steps
        times = torch.linspace(0, 1, steps + 1, device="cpu").tolist()
        for time, after in pairwise(times):
            by = after - time
            first = velocity(x, time)
            if self.config.integration_method == "euler":
                x = x + by * first
                continue
            second = velocity(x + by / 2 * first, time + by / 2)
            third = velocity(x + by / 2 * second, time + by / 2)
            fourth = velocity(x + by * third, time + by)
            x = x + by / 6 * (first + 2 * second + 2 * third + fourth)
        return x

    def loss(
        self, batch: dict[str, Tensor], draws: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the mean squared error of the prediction at random times.

        Padded actions count unless the config masks them.
        """
        actions = batch[ACTION]
        noisy, times, target = self._noisy_sample(actions, draws)
        places = draws.get(CROP) if self.training else None
        modulation = self.noise_predictor.condition_modulation(
            self.observation_encoder(batch, places)
        )
        errors = F.mse_loss(
            self.noise_predictor(noisy, times, modulation), target, reduction="none"
        )
        if not self.config.do_mask_loss_for_padding:
            return errors.mean(), {}
        return masked_mean(errors, batch["action_is_pad"]), {}

    def _noisy_sample(
        self, actions: Tensor, draws: dict[str, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return noisy actions, their timesteps, and the training target."""
        noise = draws[NOISE]
        if self.schedule is not None:
            steps = (draws[TIME] * self.config.num_train_timesteps).long()
            noisy = self.schedule.add_noise(actions, noise, steps)
            return noisy, steps, noise if self.schedule.predicts_noise else actions
        times = self._times(draws[TIME])
        t, kept = times[:, None, None], 1 - self.config.sigma_min
        return t * actions + (1 - kept * t) * noise, times, actions - kept * noise

    def _times(self, uniform: Tensor) -> Tensor:
        """Return flow matching times [B], from a beta distribution by inverse sampling."""
        config = self.config
        if config.timestep_sampling_strategy == "uniform":
            return uniform
        if config.timestep_sampling_beta == 1:
            drawn = uniform ** (1 / config.timestep_sampling_alpha)
        else:
            drawn = 1 - (1 - uniform) ** (1 / config.timestep_sampling_beta)
        return config.timestep_sampling_s * (1 - drawn)

    def compiled_modules(self) -> list[nn.Module]:
        """Compile the transformer: it runs at every denoising step."""
        return [self.noise_predictor]


class ObservationEncoder(nn.Module):
    """Encodes observations and instruction as one condition vector."""

    def __init__(self, config: DitConfig) -> None:
        super().__init__()
        self.config = config
        n_cameras, seen = len(config.cameras), 0
        if n_cameras:
            count = n_cameras if config.use_separate_rgb_encoder_per_camera else 1
            encoders = [VisionEncoder(config) for _ in range(count)]
            seen = n_cameras * encoders[0].size
            if config.use_separate_rgb_encoder_per_camera:
                self.vision_encoders = nn.ModuleList(encoders)
            else:
                self.vision_encoder = encoders[0]
        self.text_encoder = TextEncoder(config)
        self.size = config.n_obs_steps * ((config.state_dim or 0) + seen + config.hidden_dim)
        """Width of the condition vector."""

    def forward(self, inputs: dict[str, Tensor], places: Tensor | None = None) -> Tensor:
        """Return the condition [B, size]: state, cameras and instruction of each observed step.

        ``places`` [B, cameras, 2] are crop offsets from 0 to 1; None: centre crops.
        """
        parts = [inputs[STATE]]
        for index, camera in enumerate(self.config.cameras):
            offsets = None if places is None else places[:, index]
            parts.append(encode_history(self._encoder(index), inputs[camera], offsets))
        words = self.text_encoder(inputs[LANGUAGE_TOKENS], inputs[LANGUAGE_MASK])
        parts.append(words[:, None].expand(-1, parts[0].shape[1], -1))
        return torch.cat(parts, -1).flatten(1)

    def _encoder(self, camera: int) -> nn.Module:
        if self.config.use_separate_rgb_encoder_per_camera:
            return self.vision_encoders[camera]
        return self.vision_encoder


class Clip(nn.Module):
    """Base of CLIP's image and text encoders."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def load_pretrained(self) -> None:
        """Load CLIP's pretrained weights from a local folder or the Hub."""
        try:
            folder = locate(self.name).folder
            load_submodule(self, read_weight_files(folder)[0], str(folder))
        except UsageError as error:
            raise UsageError(
                f"a new multi_task_dit needs the weights of {self.name}: {error}; "
                "--policy.load_clip_weights=false starts from random weights",
                code="policy.missing-pretrained-weights",
            ) from None


class ClipVision(Clip):
    """CLIP's image encoder, under transformers' attribute name."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.sizes = clip_sizes(name).vision_config
        self.vision_model = ClipVisionModel(self.sizes)


class VisionEncoder(nn.Module):
    """Encodes images as CLIP's class token."""

    def __init__(self, config: DitConfig) -> None:
        super().__init__()
        self.resize, self.crop = config.image_resize_shape, config.crop
        self.model = ClipVision(config.vision_encoder_name)
        sizes = self.model.sizes
        self.size = sizes.hidden_size
        if config.encoded_size != (sizes.image_size, sizes.image_size):
            height, width = config.encoded_size
            raise ValueError(
                f"{config.vision_encoder_name} takes {sizes.image_size}x{sizes.image_size} pixels, "
                f"not {height}x{width}: set image_resize_shape or image_crop_shape"
            )

    def forward(self, images: Tensor, offsets: Tensor | None) -> Tensor:
        """Return [N, D] for images [N, 3, H, W], cropped at ``offsets``."""
        images = resize_and_crop(images, self.resize, self.crop, offsets)
        out: Tensor = self.model.vision_model(images)
        return out


class ClipText(Clip):
    """CLIP's text encoder, under transformers' attribute name."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.sizes = clip_sizes(name).text_config
        self.text_model = ClipTextModel(self.sizes)


class TextEncoder(nn.Module):
    """CLIP's frozen text encoder with a trained projection."""

    def __init__(self, config: DitConfig) -> None:
        super().__init__()
        self.text_encoder = ClipText(config.text_encoder_name)
        sizes = self.text_encoder.sizes
        self.projection = nn.Linear(sizes.hidden_size, config.hidden_dim)
        self.text_encoder.requires_grad_(False)
        if config.tokenizer_max_length > sizes.max_position_embeddings:
            raise ValueError(
                f"{config.text_encoder_name} takes {sizes.max_position_embeddings} tokens, but "
                f"tokenizer_max_length is {config.tokenizer_max_length}"
            )

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Return [B, D] for tokens [B, N]."""
        with torch.no_grad():
            words = self.text_encoder.text_model(tokens, mask)
        out: Tensor = self.projection(words)
        return out
