"""Draws the wording of each training sample's instruction (--dataset.paraphrase_tasks)."""

from __future__ import annotations

from dataclasses import dataclass

from proctor.benchmarks.perturbations.training_wordings import training_wordings
from proctor.training.rng import random_number


@dataclass(frozen=True)
class TaskWordings:
    """Wordings as a function of (seed, sample): a resumed training draws the same ones."""

    seed: int

    def draw(self, instruction: str, sample: int) -> str:
        """Return the recorded instruction for half of the samples, else one of its wordings."""
        others = training_wordings(instruction)
        number = random_number("wordings", self.seed, int(sample))
        if not others or number % 2 == 0:
            return instruction
        return others[number // 2 % len(others)]
