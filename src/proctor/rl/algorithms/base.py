"""Interface between the learner's loop and an algorithm."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, TypeAlias

from proctor.rl.transitions import TransitionBatch

if TYPE_CHECKING:
    import torch

TensorTree: TypeAlias = "dict[str, torch.Tensor]"
"""A flat mapping from a dotted name to a tensor, as safetensors files hold."""


class Algorithm(ABC):
    """An off-policy algorithm that owns its networks, optimisers and random generator."""

    @property
    @abstractmethod
    def step(self) -> int:
        """Number of updates made so far."""

    @abstractmethod
    def update(self, batches: Iterator[TransitionBatch]) -> dict[str, float]:
        """Make one update and return its metrics.

        An update takes as many batches from the iterator as the algorithm's update-to-data ratio.
        Metrics have LeRobot's names, for example ``loss_critic`` and ``critic_grad_norm``.
        """

    @abstractmethod
    def actor_state(self) -> dict[str, TensorTree]:
        """Return copies of the weights that actors need, on the CPU.

        The keys are those of LeRobot's parameter messages: ``policy``, and ``discrete_critic``
        for a policy with a discrete gripper.
        """

    @abstractmethod
    def state(self) -> TensorTree:
        """Return everything that the next update depends on, as copies on the CPU.

        That includes the policy, the optimisers and the random generator.
        """

    @abstractmethod
    def load_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Restore what `state` returned; the next update then gives the same bits."""
