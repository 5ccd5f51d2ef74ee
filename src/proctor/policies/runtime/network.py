"""Interface of a policy network: action chunks for rollouts, a loss for training."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from proctor.policies.lerobot.processors.step import ProcessorStep

LR_MULTIPLIER, LR_FLAG = "share_of_rate", "flag_of_rate"
"""Keys of a parameter group: its rate as a multiple of the optimiser's; the flag of its own rate.
"""


class NoiseSpec(Enum):
    """Distribution of a random number."""

    NORMAL = "normal"
    """Mean 0, standard deviation 1."""
    UNIFORM = "uniform"
    """In [0, 1)."""


def draw_noise(
    draws: Mapping[str, tuple[NoiseSpec, tuple[int, ...]]], generator: torch.Generator, *rows: int
) -> dict[str, Tensor]:
    """Sample everything declared in ``draws``, in its order, each [*rows, *shape] on the CPU."""
    how = {NoiseSpec.NORMAL: torch.randn, NoiseSpec.UNIFORM: torch.rand}
    return {
        name: how[kind]((*rows, *shape), generator=generator)
        for name, (kind, shape) in draws.items()
    }


def gumbel(uniform: Tensor) -> Tensor:
    """Return Gumbel noise from ``uniform`` numbers: argmax(logits + noise) samples by the logits.

    The uniform numbers belong to a row, so its sample does not depend on the batch.
    """
    tiny = torch.finfo(torch.float32).tiny
    return -(-uniform.float().clamp(min=tiny).log()).log()


ImageRegion = tuple[int, int, int, int]
"""Top, left, height and width of a part of an image, in pixels."""


class Network(nn.Module, ABC):
    """A torch module that turns normalised observations into normalised action chunks.

    It is a pure function of its inputs without state. Random numbers are declared here, sampled by
    the caller with its own seed, and passed in.
    """

    takes_history: bool
    """True: inputs are [B, n_obs_steps, ...]; False: only the newest observation, [B, ...]."""
    notes: tuple[str, ...] = ()
    """Lines the user should see once."""
    loss_supports_cuda_graph: bool = False
    """Whether ``loss`` never syncs with the host, so a CUDA graph can capture it."""
    draws: Mapping[str, tuple[NoiseSpec, tuple[int, ...]]] = {}
    """Random numbers for each row of ``chunk``: distribution and shape."""
    loss_draws: Mapping[str, tuple[NoiseSpec, tuple[int, ...]]] = {}
    """Random numbers for each row of ``loss``."""
    episode_inputs: Mapping[str, tuple[int, ...]] = {}
    """Inputs of ``chunk`` that come from the episode's state: names and shapes."""
    steps_per_query: int | None = None
    """Steps between inference calls that ``episode_inputs`` assumes; None: any number."""

    n_raw_actions: int = 0
    """Numbers at the end of an action that are in the environment's units already."""
    adapter_targets: str | None = None
    """Default target layers of an adapter: a regex of LeRobot's names."""
    supports_cuda_graph: bool = True
    """Whether a CUDA graph can capture ``chunk``; not where its length depends on the data."""

    @property
    def vocabulary(self) -> int | None:
        """Size of the token vocabulary; None: no tokens."""
        return None

    skips_padding: bool = False
    """Whether ``chunk`` is the same, up to rounding, without the prompt's padding."""

    tied: Mapping[str, str] = {}
    """Tied parameters, by name: a file may hold either of each pair."""

    def remap_state_dict(self, stored: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return a file's tensors under our names; ``stored`` has no family prefix."""
        return stored

    def cast(self, dtype: torch.dtype | None) -> None:
        """Cast the weights to ``dtype``; None: as their file has them."""
        if dtype is not None:
            self.to(dtype)

    @property
    def input_dtype(self) -> torch.dtype:
        """The dtype of observations."""
        return next(self.parameters()).dtype

    @abstractmethod
    def chunk(self, inputs: dict[str, Tensor], draws: dict[str, Tensor]) -> Tensor:
        """Return normalised actions [B, T, A], the first of them for the newest observation.

        Values that ``postprocess`` puts into the states follow them, in more rows of T.
        """

    @abstractmethod
    def loss(
        self, batch: dict[str, Tensor], draws: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the training loss of a normalised batch, and its named terms for the log."""

    def check_preprocessor(self, steps: Sequence[ProcessorStep]) -> None:
        """Check the preprocessor's steps, and take from them what inference needs."""

    def begin_training(self) -> None:
        """Prepare loaded weights for training, such as their dtype."""

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Return parameter groups for torch's optimisers; a group may have its own lr.

        With ``LR_MULTIPLIER`` its lr is a multiple of the optimiser's. ``LR_FLAG`` names the flag
        of a group's own lr, which --optimizer.lr does not change.
        """
        return [{"params": list(self.parameters())}]

    def training_regions(self) -> dict[str, ImageRegion]:
        """Return the part of each camera's images that the loss reads in training, if not all.

        ``loss`` accepts images of that size too, when the network trains.
        """
        return {}

    def training_notes(self, steps: int) -> tuple[str, ...]:
        """Return remarks on a training of ``steps`` steps, shown once."""
        return ()

    @property
    def adapter_conflict(self) -> str | None:
        """Why adapter files cannot hold everything that is trained; None: they can."""
        return None

    def after_update(self, step: int) -> None:
        """Update what gradients do not, such as moving averages, after ``step`` training steps.

        All of it is part of the state dict.
        """

    def load_pretrained(self) -> None:
        """Load pretrained parts of a new network, if any."""

    def new_episode(self) -> Any:
        """Return the state of a new episode: zeros for ``episode_inputs``; None: stateless."""
        return {
            name: np.zeros(shape, np.float32) for name, shape in self.episode_inputs.items()
        } or None

    def postprocess(self, chunks: Tensor, states: list[Any]) -> Tensor:
        """Return the actions to execute of ``chunks`` [B, T, A], on the CPU; may update states."""
        return chunks

    @abstractmethod
    def compiled_modules(self) -> list[nn.Module]:
        """Return the modules that are worth compiling."""


def shared_names(network: nn.Module) -> dict[str, str]:
    """Return the names of shared tensors that a file leaves out, mapped to the name it keeps.

    As in safetensors, the file keeps the first name in alphabetical order.
    """
    names: dict[int, list[str]] = {}
    for name, tensor in network.state_dict(keep_vars=True).items():
        names.setdefault(id(tensor), []).append(name)
    return {alias: min(group) for group in names.values() for alias in group if alias != min(group)}
