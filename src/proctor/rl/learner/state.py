"""The exact state of a learner in a checkpoint, beside the files in LeRobot's layout.

training_state/learner.json           counters, see ``LearnerCounters``
training_state/learner.safetensors    the algorithm's state and the weights that the actors have
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from proctor.errors import UsageError
from proctor.rl.algorithms.base import Algorithm
from proctor.rl.learner.learner import Learner, LearnerCounters
from proctor.rl.link.links import ActorWeights
from proctor.system.files import read_regular_file
from proctor.training.checkpoints.saving import STATE

_COUNTERS, _TENSORS = "learner.json", "learner.safetensors"
_ALGORITHM, _PUBLISHED = "algorithm.", "published."


def write_learner(learner: Learner, checkpoint: Path) -> None:
    """Write the state of a learner into a checkpoint's folder.

    Raises:
        OSError, SafetensorError: the files cannot be written.
    """
    folder = checkpoint / STATE
    folder.mkdir(exist_ok=True)
    tensors = {_ALGORITHM + name: value for name, value in learner.algorithm.state().items()}
    if learner.published is not None:
        for module, arrays in learner.published.modules.items():
            for name, array in arrays.items():
                tensors[f"{_PUBLISHED}{module}/{name}"] = torch.from_numpy(array)
    save_file({name: value.contiguous() for name, value in tensors.items()}, folder / _TENSORS)
    (folder / _COUNTERS).write_bytes(msgspec.json.encode(asdict(learner.counters)))


def read_learner(
    checkpoint: Path, algorithm: Algorithm
) -> tuple[LearnerCounters, ActorWeights | None]:
    """Restore ``algorithm`` from a checkpoint; return the counters and the published weights."""
    folder = checkpoint / STATE
    try:
        counters = msgspec.json.decode(read_regular_file(folder / _COUNTERS), type=LearnerCounters)
        tensors = load_file(folder / _TENSORS)
        algorithm.load_state(
            {
                name.removeprefix(_ALGORITHM): value
                for name, value in tensors.items()
                if name.startswith(_ALGORITHM)
            }
        )
    except (OSError, SafetensorError, msgspec.MsgspecError, KeyError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise UsageError(
            f"{folder} cannot be resumed: {reason}", code="checkpoint.invalid-state"
        ) from None
    modules: dict[str, dict[str, object]] = {}
    for name, value in tensors.items():
        if name.startswith(_PUBLISHED):
            module, _, key = name.removeprefix(_PUBLISHED).partition("/")
            modules.setdefault(module, {})[key] = value.numpy()
    weights = ActorWeights(modules, counters.published_steps) if modules else None  # type: ignore[arg-type]
    return counters, weights
