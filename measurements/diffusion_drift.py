"""Whether Diffusion with a camera learns as LeRobot's does, or drifts from it: the networks alone.

    proctor train --dataset.root=DIR --policy.type=diffusion ... --steps=1     # a checkpoint: START
    python measurements/diffusion_drift.py ours START ours.json
    python measurements/diffusion_drift.py theirs START theirs.json            # by LeRobot's Python
    python measurements/diffusion_drift.py compare ours.json theirs.json

Both sides learn 20 steps by SGD from the same normalised inputs, noise and start weights: in
float32, in float64, and in float32 from weights that were changed by one part in ten million.
START looks at one camera (`observation.images.top`, 64x64), a state and an action of 2 numbers.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

# A file beside this one has the name of a package that LeRobot imports.
sys.path[:] = [path for path in sys.path if Path(path).resolve() != Path(__file__).resolve().parent]

STEPS, ROWS, HORIZON, SIZE = 20, 4, 8, 64
RATE, CLIPPED, CHANGED = 1e-3, 10.0, 1e-7
Inputs = dict[str, torch.Tensor]
Loss = Callable[[Inputs], torch.Tensor]


def inputs(dtype: torch.dtype) -> Iterator[Inputs]:
    """Yield what each step learns from: waves that move, and numbers from a fixed seed."""
    drawn = np.random.default_rng(0)
    down, right = np.mgrid[:SIZE, :SIZE]
    for _ in range(STEPS):
        moments = drawn.integers(0, 18, ROWS)[:, None] + np.arange(2)
        waves = [
            np.sin((down * a + right * b) / 9 + moments[..., None, None] / 3)
            for a, b in ((1, 2), (2, 1), (3, 1))
        ]
        found = {
            "observation.images.top": 1.4 * np.stack(waves, axis=2),
            "observation.state": drawn.normal(size=(ROWS, 2, 2)),
            "action": drawn.normal(size=(ROWS, HORIZON, 2)).clip(-1, 1),
            "noise": drawn.normal(size=(ROWS, HORIZON, 2)),
            "time": drawn.random(ROWS),
        }
        yield {
            key: torch.from_numpy(value.astype(np.float32)).to(dtype)
            for key, value in found.items()
        }


def our_network(start: Path) -> tuple[torch.nn.Module, Loss]:
    """Return our network and how its loss is computed."""
    from proctor.policies.lerobot.checkpoint import read_checkpoint

    network = read_checkpoint(start).network

    def loss(given: Inputs) -> torch.Tensor:
        found: torch.Tensor = network.loss(given, given)[0]
        return found

    return network, loss


def their_network(start: Path) -> tuple[torch.nn.Module, Loss]:
    """Return LeRobot's network and how its loss is computed, with the noise that is given."""
    from lerobot.policies.diffusion.modeling_diffusion import (  # type: ignore[import-not-found]
        DiffusionPolicy,
    )

    policy = DiffusionPolicy.from_pretrained(start)

    def loss(given: Inputs) -> torch.Tensor:
        before: Any = (torch.randn, torch.randint)
        torch.randn = lambda *_, **__: given["noise"]  # type: ignore[assignment]
        torch.randint = lambda *_, **named: (given["time"] * named["high"]).long()  # type: ignore[assignment]
        try:
            found: torch.Tensor = policy(given)[0]
        finally:
            torch.randn, torch.randint = before
        return found

    return policy, loss


def losses(side: str, start: Path, dtype: torch.dtype, changed: float = 0.0) -> list[float]:
    """Train from ``start`` and return the loss of every step."""
    torch.set_default_dtype(dtype)
    network, loss_of = (our_network if side == "ours" else their_network)(start)
    network.to(dtype).train()
    if changed:
        drawn = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for _, weights in sorted(network.named_parameters()):
                weights.mul_(1 + changed * (2 * torch.rand(weights.shape, generator=drawn) - 1))
    learnt = [weights for weights in network.parameters() if weights.requires_grad]
    optimizer = torch.optim.SGD(learnt, lr=RATE)
    found = []
    for given in inputs(dtype):
        given["action_is_pad"] = torch.zeros(given["action"].shape[:2], dtype=torch.bool)
        loss = loss_of(given)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learnt, CLIPPED)
        optimizer.step()
        found.append(loss.item())
    return found


def compare(ours: dict[str, list[float]], theirs: dict[str, list[float]]) -> None:
    """Print the largest relative difference of any step."""
    pairs = {
        "ours and LeRobot's, float32": (ours["float32"], theirs["float32"]),
        "ours and LeRobot's, float64": (ours["float64"], theirs["float64"]),
        "LeRobot's, its weights changed by 1e-7": (theirs["changed"], theirs["float32"]),
        "ours, its weights changed by 1e-7": (ours["changed"], ours["float32"]),
    }
    for name, (one, other) in pairs.items():
        print(f"{name:42}{np.max(np.abs(np.divide(one, other) - 1)):.1e}")


def main() -> None:
    """Run one side, or compare both."""
    torch.set_num_threads(1)
    what, first, second = sys.argv[1:4]
    if what == "compare":
        compare(json.loads(Path(first).read_text()), json.loads(Path(second).read_text()))
        return
    start = Path(first)
    found = {
        "float32": losses(what, start, torch.float32),
        "changed": losses(what, start, torch.float32, CHANGED),
        "float64": losses(what, start, torch.float64),
    }
    Path(second).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
