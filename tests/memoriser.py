"""A planted policy: it solves every start that trained it, and a known share of all others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from proctor.features import ENVIRONMENT_STATE, Array, Interface
from proctor.policies.base import Batch, Policy, PolicyConfig, PolicyPlugin, PolicySpec
from proctor.trained_starts import TRAINED_STARTS_FILE, TrainedStarts, read_trained_starts
from proctor.types import EpisodeSpec

SOLVED_UNSEEN = 7
"""Of ten consecutive seeds; the true rate on unseen starts is 70%."""


@dataclass
class MemoriserConfig(PolicyConfig):
    """The folder with the starts that trained it."""

    type: str = "tests.memoriser:PLUGIN"
    memory: str = ""


class Memoriser(Policy):
    """Knows its training starts by the numbers of the fake benchmark's state."""

    def __init__(self, config: MemoriserConfig, interface: Interface) -> None:
        self.spec = PolicySpec("memoriser", (ENVIRONMENT_STATE,))
        known = read_trained_starts(Path(config.memory))
        groups = () if known is None else known.groups.values()
        self._known = [start.values for group in groups for start, _ in group.starts.values()]

    def new_episode(self, spec: EpisodeSpec) -> dict[str, Any]:
        """Return the state of an episode: not recognised yet."""
        return {"seed": spec.seed}

    def act(self, batch: Batch) -> Array:
        """Move to the goal in episodes that it solves; stay in others."""
        actions = np.zeros((len(batch.queries), 1, 2), np.float32)
        for row, query in enumerate(batch.queries):
            state = batch.observations[ENVIRONMENT_STATE][row, -1]
            if query.step == 0:
                memorised = any(np.allclose(state, known, atol=1e-6) for known in self._known)
                query.state["solves"] = memorised or query.state["seed"] % 10 < SOLVED_UNSEEN
            if query.state["solves"]:
                actions[row, 0] = np.clip((state[2:] - state[:2]) * 10, -1, 1)
        return actions


PLUGIN = PolicyPlugin(
    config=MemoriserConfig,
    make=Memoriser,
    summary="memorises its training starts",
    local_checkpoint=lambda config: Path(config.memory),
)


def write_memory(folder: Path, trained: TrainedStarts) -> Path:
    """Write a checkpoint of the memoriser."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / TRAINED_STARTS_FILE).write_bytes(trained.encode())
    return folder


def starts_in(root: Path, episodes: Iterable[int] | None = None) -> TrainedStarts:
    """Return the starts of a dataset's episodes, as a training reads them."""
    from proctor.datasets.format.episodes import read_episodes
    from proctor.datasets.format.info_file import read_info
    from proctor.training.checkpoints.trained_starts import episode_starts

    found = read_episodes(root, read_info(root))
    chosen = range(len(found)) if episodes is None else episodes
    return episode_starts(root.name, found.starts, list(chosen))
