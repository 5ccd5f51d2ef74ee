"""Random numbers of a training, as a function of (seed, step) only.

So a resumed run draws the same numbers as an uninterrupted run.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from proctor.policies.runtime.network import Network, draw_noise
from proctor.training.data.sampler import WHOLE_SHARE, ProcessShare


def random_number(what: str, seed: int, step: int) -> int:
    """Return 64 random bits as a function of the arguments."""
    words = repr((what, seed, step)).encode()
    return int.from_bytes(hashlib.blake2b(words, digest_size=8).digest(), "little")


@dataclass(frozen=True)
class RngStreams:
    """All random number streams of a training; each process has its own share."""

    seed: int
    share: ProcessShare = WHOLE_SHARE

    def loss_noise(self, network: Network, step: int, rows: int) -> dict[str, Tensor]:
        """Draw the noise that the network declares for the loss of a step, on the CPU.

        Each process draws the noise of the whole step and takes its own rows.
        """
        first = self.share.rank * rows
        drawn = draw_noise(
            network.loss_draws, self._generator("loss", step), rows * self.share.world_size
        )
        return {name: value[first : first + rows] for name, value in drawn.items()}

    def augmentation_generator(self, camera: str, step: int) -> torch.Generator:
        """Return the generator for the image augmentation of a camera in a step."""
        return self._generator(f"pictures of {camera}{self._own}", step)

    def batch_generator(self, update: int) -> torch.Generator:
        """Return the generator that samples the batches of an online update."""
        return self._generator("batches", update)

    @contextmanager
    def seed_layers(self, step: int, device: torch.device) -> Iterator[None]:
        """Seed torch's default generator for layers that draw from it, such as dropout.

        The generator's state is restored at the end.
        """
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(self._key(f"layers{self._own}", step))
            yield

    @contextmanager
    def seed_weight_init(self) -> Iterator[None]:
        """Seed the initial weights of a network that is built inside the block."""
        with torch.random.fork_rng([]):
            torch.manual_seed(self.seed)
            yield

    def lerobot_rng_state(self, step: int) -> dict[str, Tensor]:
        """Return states of Python's, numpy's and torch's generators, in LeRobot's format.

        Proctor does not need them to resume. They are for LeRobot, and the same after every resume.
        """
        key = self._key("generators", step)
        version, words, _ = random.Random(key).getstate()  # noqa: S311  no secret
        state = np.random.RandomState(key % 2**32).get_state(legacy=False)
        inner = state["state"]
        return {
            "py_rng_version": torch.tensor([version]),
            "py_rng_state": torch.tensor(words),
            "np_rng_state_values": torch.from_numpy(inner["key"].astype(np.int64)),
            "np_rng_state_index": torch.tensor([int(inner["pos"])]),
            "np_rng_has_gauss": torch.tensor([0]),
            "np_rng_cached_gaussian": torch.tensor([0.0]),
            "torch_rng_state": self._generator("generators", step).get_state(),
        }

    @property
    def _own(self) -> str:
        return f" {self.share.rank}" if self.share.rank else ""

    def _generator(self, what: str, step: int) -> torch.Generator:
        return torch.Generator().manual_seed(self._key(what, step))

    def _key(self, what: str, step: int) -> int:
        return random_number(what, self.seed, step) >> 1
