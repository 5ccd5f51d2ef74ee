"""Draws the wording of each training sample's instruction (--dataset.paraphrase_tasks)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from proctor.benchmarks.perturbations.training_wordings import training_wordings, wordings_digest
from proctor.config.training import TrainConfig
from proctor.training.checkpoints.trained_episodes import checkpoint_record
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


def wordings_notes(config: TrainConfig, resumed: Path | None) -> list[str]:
    """Return a note if a resumed training draws from other wordings than its last session."""
    record = None if resumed is None else checkpoint_record(resumed)
    if record is None or not config.dataset.paraphrase_tasks:
        return []
    had_wordings = (record.resolved.get("dataset") or {}).get("paraphrase_tasks")
    if not had_wordings or record.wordings == wordings_digest():
        return []
    return [
        "the training wordings have changed since the last session of this training: from here on, "
        "its samples draw from the new ones"
    ]
