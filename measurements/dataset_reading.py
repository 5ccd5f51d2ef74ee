"""Open or read a dataset with Proctor and print the time, in a separate process.

    python -m measurements.dataset_reading open ROOT
    python -m measurements.dataset_reading read ROOT SAMPLES BATCH '{"action": [0.0, 0.1]}'
    python -m measurements.dataset_reading cached ROOT BATCH SIZE ram|disk FOLDER

``cached`` reads images of SIZE x SIZE in random order. It prints the first epoch, opening included,
and then the later ones.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

LEAST_S = 1.0


def read(dataset: Any, samples: int, batch: int) -> dict[str, float]:
    """Read at least ``samples``, for at least a second."""
    random = np.random.default_rng(0)
    dataset.batch(range(min(batch, len(dataset))))  # opens the files
    began, seen = time.perf_counter(), 0
    while seen < samples or time.perf_counter() - began < LEAST_S:
        order = random.permutation(len(dataset))
        for start in range(0, len(order), batch):
            seen += len(dataset.batch(order[start : start + batch])["index"])
    return {"samples": seen, "seconds": time.perf_counter() - began}


def opened(root: str, **options: Any) -> tuple[Any, float]:
    import proctor.datasets.reader as reader

    began = time.perf_counter()
    dataset = reader.open(Path(root), **options)
    return dataset, time.perf_counter() - began


def cached(root: str, batch: int, size: int, kind: str, folder: str) -> None:
    """Read an epoch that fills the cache, then epochs from the cache."""
    from proctor.datasets.cache_settings import CacheKind, FrameCacheSettings

    settings = FrameCacheSettings(cache=CacheKind(kind), cache_gb=20, cache_dir=folder)
    deltas = {"action": [i / 30 for i in range(50)]}
    began = time.perf_counter()
    dataset, _ = opened(root, delta_timestamps=deltas, image_size=(size, size), cache=settings)
    order = np.random.default_rng(1).permutation(len(dataset))
    for start in range(0, len(order), batch):
        dataset.batch(order[start : start + batch])
    say({"samples": len(dataset), "seconds": time.perf_counter() - began})
    say(read(dataset, len(dataset), batch))


def say(taken: dict[str, float]) -> None:
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({**taken, "peak_mb": peak_mb}))


def main(verb: str, root: str, *rest: str) -> None:
    if verb == "open":
        dataset, seconds = opened(root)
        say({"samples": len(dataset), "seconds": seconds})
    elif verb == "read":
        samples, batch, deltas = rest
        dataset, _ = opened(root, delta_timestamps=json.loads(deltas))
        say(read(dataset, int(samples), int(batch)))
    else:
        batch, size, kind, folder = rest
        cached(root, int(batch), int(size), kind, folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
