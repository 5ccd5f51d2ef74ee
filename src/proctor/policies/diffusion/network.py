"""Diffusion Policy (Chi et al., 2023): denoises actions, conditioned on the last observations.

    images ─▶ ResNet ─▶ spatial softmax ─▶ keypoints ┐
    state, environment state ────────────────────────┴▶ condition ─▶ U-Net ─▶ noise or clean actions
                                                         noisy actions ──┘  ▲
                                                              timestep ─────┘

Sampling starts from noise and runs the U-Net at every denoising step. The caller passes the noise
in, so a chunk is a function of observations and noise. All values are normalised; B is the batch, T
the horizon, A the action size, O the number of observed steps.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

from proctor.features import ACTION, ENVIRONMENT_STATE, STATE
from proctor.policies.blocks.layers import masked_mean
from proctor.policies.blocks.pretrained_resnet import load_backbones
from proctor.policies.blocks.rgb_encoder import RgbEncoder, encode_history
from proctor.policies.blocks.schedule import NoiseSchedule
from proctor.policies.diffusion.config import DiffusionConfig
from proctor.policies.diffusion.unet1d import UNet1d
from proctor.policies.runtime.network import Network, NoiseSpec

NOISE, TIME, CROP = "noise", "time", "crop"


class Diffusion(Network):
    """The network; attribute names are those of LeRobot's checkpoints."""

    takes_history = True
    loss_supports_cuda_graph = True

    def __init__(self, config: DiffusionConfig) -> None:
        super().__init__()
        self.config = config
        n_cameras = len(config.cameras)
        per_step = (config.state_dim or 0) + (config.env_dim or 0)
        if n_cameras and config.use_separate_rgb_encoder_per_camera:
            encoders = [RgbEncoder(config, config.resize_shape) for _ in range(n_cameras)]
            self.rgb_encoder: nn.ModuleList | RgbEncoder = nn.ModuleList(encoders)
        elif n_cameras:
            self.rgb_encoder = RgbEncoder(config, config.resize_shape)
        per_step += n_cameras * 2 * config.spatial_softmax_num_keypoints
        self.unet = UNet1d(config, per_step * config.n_obs_steps)
        self.schedule = NoiseSchedule(config)
        chunk = (config.horizon, config.action_dim)
        self.draws = {NOISE: (NoiseSpec.NORMAL, (self.schedule.n_noises, *chunk))}
        self.loss_draws = {NOISE: (NoiseSpec.NORMAL, chunk), TIME: (NoiseSpec.UNIFORM, ())}
        if n_cameras and config.crop_shape is not None and config.crop_is_random:
            self.loss_draws[CROP] = (NoiseSpec.UNIFORM, (n_cameras, 2))

    def load_pretrained(self) -> None:
        """Load the ImageNet weights of the image encoder, if the config asks for them."""
        load_backbones(
            self.config,
            [part.backbone for part in self.modules() if isinstance(part, RgbEncoder)],
            group_norm=self.config.use_group_norm,
        )

    def training_notes(self, steps: int) -> tuple[str, ...]:
        """Note a ``crop_ratio`` that has no effect."""
        config = self.config
        if not config.cameras or config.crop_ratio == 1 or config.resize_shape is not None:
            return ()
        return (
            f"crop_ratio={config.crop_ratio:g} has no effect: it is relative to resize_shape, "
            "which is not set; --policy.crop_shape=[height,width] crops images without resizing",
        )

    def condition(self, inputs: dict[str, Tensor], places: Tensor | None = None) -> Tensor:
        """Return the U-Net's condition, [B, O * (state + cameras + environment)].

        ``places`` [B, cameras, 2] are crop offsets from 0 to 1; None: centre crops.
        """
        parts = [inputs[STATE]]
        for index, camera in enumerate(self.config.cameras):
            offsets = None if places is None else places[:, index]
            parts.append(encode_history(self._encoder(index), inputs[camera], offsets))
        if self.config.env_dim is not None:
            parts.append(inputs[ENVIRONMENT_STATE])
        return torch.cat(parts, dim=-1).flatten(1)

    def _encoder(self, camera: int) -> nn.Module:
        """Return the image encoder of the camera with this index in the config."""
        if isinstance(self.rgb_encoder, nn.ModuleList):
            return self.rgb_encoder[camera]
        return self.rgb_encoder

    def chunk(self, inputs: dict[str, Tensor], draws: dict[str, Tensor]) -> Tensor:
        """Return the actions [B, T - O + 1, A] from the newest observation on."""
        sampled = self.sample(self.condition(inputs), draws[NOISE])
        return sampled[:, self.config.n_obs_steps - 1 :]

    def sample(self, cond: Tensor, noise: Tensor) -> Tensor:
        """Denoise ``noise[:, 0]`` into actions [B, T, A]; DDPM uses the rest, one per step."""

        def predict(x: Tensor, t: int) -> Tensor:
            timesteps = torch.full((len(x),), t, device=x.device)
            predicted: Tensor = self.unet(x.to(cond.dtype), timesteps, cond).float()
            return predicted

        return self.schedule.sample(predict, noise)

    def loss(
        self, batch: dict[str, Tensor], draws: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the mean squared error of the prediction at random timesteps.

        Padded actions count unless the config masks them.
        """
        actions, noise, n = batch[ACTION], draws[NOISE], self.config.num_train_timesteps
        timesteps = (draws[TIME] * n).long()  # uniform over 0 to n - 1
        noisy = self.schedule.add_noise(actions, noise, timesteps)
        places = draws.get(CROP) if self.training else None
        predicted = self.unet(noisy, timesteps, self.condition(batch, places))
        target = noise if self.schedule.predicts_noise else actions
        errors = F.mse_loss(predicted, target, reduction="none")
        if not self.config.do_mask_loss_for_padding:
            return errors.mean(), {}
        return masked_mean(errors, batch["action_is_pad"]), {}

    def compiled_modules(self) -> list[nn.Module]:
        """Compile the U-Net: it runs at every denoising step."""
        return [self.unet]
