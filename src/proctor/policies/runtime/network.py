"""What ChunkPolicy and training ask of a network: chunks for rollouts, a loss for training."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from proctor.policies.lerobot.step import Step

SHARE_OF_RATE = "share_of_rate"
"""Of a group of parameters: its learning rate, as a share of the optimiser's."""


class Drawn(Enum):
    """How a number is drawn."""

    NORMAL = "normal"
    """Mean 0, deviation 1."""
    UNIFORM = "uniform"
    """From 0 up to, but never, 1."""


def draw(
    draws: Mapping[str, tuple[Drawn, tuple[int, ...]]], generator: torch.Generator, *rows: int
) -> dict[str, Tensor]:
    """Draw all that is declared in ``draws``, in its order, each [*rows, *shape] on the CPU."""
    how = {Drawn.NORMAL: torch.randn, Drawn.UNIFORM: torch.rand}
    return {
        name: how[kind]((*rows, *shape), generator=generator)
        for name, (kind, shape) in draws.items()
    }


def gumbel(uniform: Tensor) -> Tensor:
    """Return noise that, added to logarithms of probabilities, makes their argmax a draw by them.

    Of ``uniform`` numbers, as they are drawn for each row: so one draw is a function of its row.
    """
    tiny = torch.finfo(torch.float32).tiny
    return -(-uniform.float().clamp(min=tiny).log()).log()


class Network(nn.Module, ABC):
    """A torch module that turns normalised observations into normalised action chunks.

    It is a pure function of its inputs: what is random is declared and handed in, drawn by whoever
    knows what it is to be keyed by; nothing is remembered.
    """

    takes_history: bool
    """True: inputs are [B, n_obs_steps, ...]; False: only the newest observation, [B, ...]."""
    remarks: tuple[str, ...] = ()
    """Lines the user should see once."""
    recordable: bool = False
    """True: ``loss`` never asks the host, so a CUDA graph can hold it and its gradients."""
    draws: Mapping[str, tuple[Drawn, tuple[int, ...]]] = {}
    """What is drawn for each row of a ``chunk``: how, and its shape."""
    loss_draws: Mapping[str, tuple[Drawn, tuple[int, ...]]] = {}
    """What is drawn for each row of a ``loss``."""
    recalled: Mapping[str, tuple[int, ...]] = {}
    """What an episode's state hands to each ``chunk``, among its inputs: names and shapes."""
    asked_every: int | None = None
    """Steps between two queries that what is recalled is made for; None: it fits any number."""

    adapted: str | None = None
    """Layers that get an adapter where none are named: a regex of LeRobot's names."""
    graphed: bool = True
    """Whether a CUDA graph can hold a ``chunk``: not where its length depends on what it says."""

    @property
    def vocabulary(self) -> int | None:
        """How many tokens it knows; None where it hears none."""
        return None

    skips_padding: bool = False
    """Whether a ``chunk`` is the same, but for rounding, with the padding behind words cut off."""

    tied: Mapping[str, str] = {}
    """Weights that are others', by their names: a file may have either; each pair is one."""

    def adopt(self, stored: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the weights of a file by the names they have here, where a file may have others.

        ``stored`` are without what stands before all names of the family.
        """
        return stored

    def cast(self, dtype: torch.dtype | None) -> None:
        """Bring the weights to what they are computed in; None: as their file has them."""
        if dtype is not None:
            self.to(dtype)

    @property
    def input_dtype(self) -> torch.dtype:
        """What observations are to be when they come in."""
        return next(self.parameters()).dtype

    @abstractmethod
    def chunk(self, inputs: dict[str, Tensor], draws: dict[str, Tensor]) -> Tensor:
        """Return normalised actions [B, T, A], the first of them for the newest observation.

        What ``settle`` is to put into the states follows them, in more rows of T.
        """

    @abstractmethod
    def loss(
        self, batch: dict[str, Tensor], draws: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the training loss of a normalised batch and its named parts, for the log."""

    def equip(self, steps: Sequence[Step]) -> None:
        """Take what acting needs from the steps before the network, such as a tokenizer."""

    def begin_training(self) -> None:
        """Make of weights as their file has them those that are learnt."""

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Return what is trained, as torch's optimisers take it; a group may have its own lr.

        Or, as ``SHARE_OF_RATE``, one that follows that of all others.
        """
        return [{"params": list(self.parameters())}]

    def remarks_on_training(self, steps: int) -> tuple[str, ...]:
        """Return lines the user should see once of a training of so many steps."""
        return ()

    @property
    def unadaptable(self) -> str | None:
        """Why an adapter's files would not hold all that is learnt; None: they do."""
        return None

    def updated(self, step: int) -> None:
        """Let what is not learnt by gradients follow an update of a training, after ``step`` steps.

        Such as averages of weights and phases of a training; all of it stands in the state dict.
        """

    def begin(self) -> None:
        """Take over what a new network of the family does not begin with at random, if anything.

        Raises:
            UsageError: it is not to be had.
        """

    def new_episode(self) -> Any:
        """Return what one episode has to remember between queries; None where nothing.

        Of a network that recalls something, a dict with it.
        """
        return {name: np.zeros(shape, np.float32) for name, shape in self.recalled.items()} or None

    def settle(self, chunks: Tensor, states: list[Any]) -> Tensor:
        """Return what is played of ``chunks`` [B, T, A], on the CPU; may change the states."""
        return chunks

    @abstractmethod
    def hot_parts(self) -> list[nn.Module]:
        """Return the modules that are worth compiling."""
