"""Noise schedules of diffusion policies: DDPM (Ho et al., 2020) and DDIM.

The semantics are those of the diffusers library with LeRobot's settings: "leading" timestep
spacing, "fixed_small" variance for DDPM, eta 0 and a final alpha of 1 for DDIM. The coefficients
of each timestep are Python floats computed in advance, so a CUDA graph can capture the whole loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class ScheduleConfig(Protocol):
    """Config fields of the noise schedule, under LeRobot's names."""

    noise_scheduler_type: str
    num_train_timesteps: int
    beta_schedule: str
    beta_start: float
    beta_end: float
    prediction_type: str
    clip_sample: bool
    clip_sample_range: float
    num_inference_steps: int | None


def betas(name: str, n_steps: int, start: float, end: float) -> Tensor:
    """Return the noise variance of every training timestep, float32 [n_steps]."""
    if name == "linear":
        return torch.linspace(start, end, n_steps, dtype=torch.float32, device="cpu")
    if name == "scaled_linear":
        roots = torch.linspace(start**0.5, end**0.5, n_steps, dtype=torch.float32, device="cpu")
        return roots**2
    if name == "sigmoid":
        ramp = torch.linspace(-6, 6, n_steps, device="cpu")
        return torch.sigmoid(ramp) * (end - start) + start
    values = []
    for i in range(n_steps):
        ratio = _cosine_alpha_bar((i + 1) / n_steps) / _cosine_alpha_bar(i / n_steps)
        values.append(min(1 - ratio, 0.999))  # squaredcos_cap_v2: capped before alpha reaches 0
    return torch.tensor(values, dtype=torch.float32, device="cpu")


def _cosine_alpha_bar(s: float) -> float:
    return math.cos((s + 0.008) / 1.008 * math.pi / 2) ** 2


@dataclass(frozen=True)
class DenoisingStep:
    """The coefficients of one denoising step from timestep ``t`` to the next lower one.

    x0 = (x - noise_std * eps) / signal;  x' = from_x0 * x0 + from_x * x + from_eps * eps + std * z
    """

    t: int
    signal: float
    noise_std: float
    from_x0: float
    from_x: float
    from_eps: float
    std: float


class NoiseSchedule:
    """Adds noise to actions in training, and removes it step by step in sampling.

    ``steps`` are the denoising steps in order; ``alphas_cumprod`` is the share of signal variance
    at every training timestep.
    """

    def __init__(self, config: ScheduleConfig) -> None:
        self.predicts_noise = config.prediction_type == "epsilon"
        self.clip = config.clip_sample_range if config.clip_sample else None
        self.betas = betas(
            config.beta_schedule, config.num_train_timesteps, config.beta_start, config.beta_end
        )
        self.alphas_cumprod = torch.cumprod(1 - self.betas, 0)
        n_train = config.num_train_timesteps
        n_inference = config.num_inference_steps or n_train
        stride = n_train // n_inference
        timesteps = [i * stride for i in reversed(range(n_inference))]
        make = self._ddpm if config.noise_scheduler_type == "DDPM" else self._ddim
        self.steps = [make(t, t - stride) for t in timesteps]

    def _alpha_bar(self, t: int) -> Tensor:
        """Return the share of signal at ``t``: 1 before the first timestep.

        It is a float32 scalar, as in diffusers: with tiny betas 1 - alpha is mostly rounding, and
        LeRobot's policies are sampled with that rounding.
        """
        return self.alphas_cumprod[t] if t >= 0 else torch.tensor(1.0, device="cpu")

    def _ddpm(self, t: int, t_next: int) -> DenoisingStep:
        """Return the step of the posterior q(x' | x, x0), with the "fixed_small" variance."""
        bar, bar_next = self._alpha_bar(t), self._alpha_bar(t_next)
        alpha = bar / bar_next
        variance = ((1 - bar_next) / (1 - bar) * (1 - alpha)).clamp(min=1e-20)
        return DenoisingStep(
            t=t,
            signal=float(bar.sqrt()),
            noise_std=float((1 - bar).sqrt()),
            from_x0=float(bar_next.sqrt() * (1 - alpha) / (1 - bar)),
            from_x=float(alpha.sqrt() * (1 - bar_next) / (1 - bar)),
            from_eps=0.0,
            std=float(variance.sqrt()) if t > 0 else 0.0,
        )

    def _ddim(self, t: int, t_next: int) -> DenoisingStep:
        """Return the deterministic step, which adds back less of the predicted noise."""
        bar, bar_next = self._alpha_bar(t), self._alpha_bar(t_next)
        return DenoisingStep(
            t=t,
            signal=float(bar.sqrt()),
            noise_std=float((1 - bar).sqrt()),
            from_x0=float(bar_next.sqrt()),
            from_x=0.0,
            from_eps=float((1 - bar_next).sqrt()),
            std=0.0,
        )

    def add_noise(self, clean: Tensor, noise: Tensor, timesteps: Tensor) -> Tensor:
        """Return ``clean`` [B, T, A] with ``noise`` at the level of ``timesteps`` [B]."""
        if self.alphas_cumprod.device != clean.device:  # once: a CUDA graph cannot capture the copy
            self.alphas_cumprod = self.alphas_cumprod.to(clean.device)
        bar = self.alphas_cumprod[timesteps][:, None, None]
        return bar.sqrt() * clean + (1 - bar).sqrt() * noise

    @property
    def n_noises(self) -> int:
        """Noise tensors that ``sample`` uses: the start, and one per stochastic step."""
        return 1 + sum(step.std > 0 for step in self.steps)

    def sample(self, predict: Callable[[Tensor, int], Tensor], noise: Tensor) -> Tensor:
        """Denoise ``noise[:, 0]`` into actions [B, T, A].

        ``predict(x, t)`` is the network; ``noise`` is [B, n_noises, T, A].
        """
        x = noise[:, 0]
        fresh = iter(noise[:, 1:].unbind(1))
        for step in self.steps:
            x = self.denoise(step, x, predict(x, step.t), next(fresh) if step.std else None)
        return x

    def denoise(
        self, step: DenoisingStep, x: Tensor, predicted: Tensor, noise: Tensor | None
    ) -> Tensor:
        """Return x after one denoising step, from the network's prediction and fresh noise."""
        if self.predicts_noise:
            x0 = (x - step.noise_std * predicted) / step.signal
            eps = predicted
        else:
            x0 = predicted
            eps = (x - step.signal * predicted) / step.noise_std
        if self.clip is not None:
            x0 = x0.clamp(-self.clip, self.clip)
        cleaner = step.from_x0 * x0 + step.from_x * x + step.from_eps * eps
        if step.std and noise is not None:
            cleaner = cleaner + step.std * noise
        return cleaner
