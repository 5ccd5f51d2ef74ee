"""Open, read or edit a dataset with LeRobot and print the time; runs in LeRobot's venv.

    python lerobot_datasets.py open ROOT
    python lerobot_datasets.py read ROOT SAMPLES BATCH WORKERS '{"action": [0.0, 0.1]}'
    python lerobot_datasets.py delete ROOT OUTPUT '[1, 3]'

``read`` does what its training does: a DataLoader in random order over ``LeRobotDataset``, images
as uint8. The first batch is not counted: workers start and files are opened. Prints one JSON line.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from lerobot.datasets.lerobot_dataset import LeRobotDataset


def opened(root: str, deltas: dict[str, list[float]] | None = None) -> Any:
    return LeRobotDataset(
        "local/dataset", root=root, video_backend="pyav", delta_timestamps=deltas, return_uint8=True
    )


def peak_mb() -> float:
    """Return the peak memory of this process and its largest child."""
    import resource

    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(resource.getrusage(kind).ru_maxrss for kind in kinds) / 1024


def read(
    root: str, samples: int, batch: int, workers: int, deltas: dict[str, list[float]] | None
) -> dict[str, float]:
    dataset = opened(root, deltas)
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=batch, shuffle=True, num_workers=workers, drop_last=True,
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    batches = iter(loader)
    next(batches)
    began, seen = time.perf_counter(), 0
    while seen < samples:
        found = next(batches, None)
        if found is None:
            break
        seen += len(found["index"])
    took_s = time.perf_counter() - began
    return {"samples": seen, "seconds": took_s}


def delete(root: str, output: str, episodes: list[int]) -> dict[str, float]:
    """Delete episodes into a new dataset."""
    from lerobot.datasets.dataset_tools import delete_episodes

    dataset = opened(root)
    began = time.perf_counter()
    delete_episodes(dataset, episodes, output_dir=Path(output), repo_id="local/fewer")
    return {"samples": len(dataset), "seconds": time.perf_counter() - began}


def main(verb: str, root: str, *rest: str) -> None:
    if verb == "open":
        began = time.perf_counter()
        length = len(opened(root))
        said = {"seconds": time.perf_counter() - began, "samples": length}
    elif verb == "delete":
        output, episodes = rest
        said = delete(root, output, json.loads(episodes))
    else:
        samples, batch, workers, deltas = rest
        said = read(root, int(samples), int(batch), int(workers), json.loads(deltas))
    print(json.dumps({**said, "peak_mb": peak_mb()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
