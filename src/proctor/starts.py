"""Measured starts as records: from numbers to a ``Start``, and the start of a demonstration."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from proctor.errors import SimulatorFault
from proctor.features import Array
from proctor.types import MAX_START_VALUES, Start

if TYPE_CHECKING:
    import numpy as np
else:  # `proctor eval --help` comes here
    from proctor_worker.lazy_numpy import np


@dataclass(frozen=True, order=True)
class StartSource:
    """The benchmark that defines starts; starts of other versions are not comparable."""

    benchmark: str
    version: str
    """Its main distribution and that one's version ("metaworld 3.1.1"); empty: built in."""

    def __str__(self) -> str:
        return self.version or self.benchmark


@dataclass(frozen=True)
class DemonstrationStart:
    """The start of one demonstration, or of one episode of online learning."""

    source: StartSource
    suite: str
    task_id: int
    """Suite and id of its task; of a perturbed episode, of the clean task."""
    planned: str
    """The start's name within the task, as planned (``EpisodeSpec.world``)."""
    start: Start

    def to_json(self) -> str:
        """Return the record as text, for a dataset's table of episodes."""
        import msgspec  # not in every interpreter that measures starts

        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> DemonstrationStart:
        """Return the record of ``to_json``.

        Raises:
            ValueError: the text is damaged.
        """
        import msgspec

        try:
            found: DemonstrationStart = msgspec.json.decode(text, type=cls)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ValueError(str(error)) from None
        start = found.start
        finite = math.isfinite(start.tolerance) and all(map(math.isfinite, start.values))
        if len(start.names) != len(start.values) or not finite or start.tolerance <= 0:
            raise ValueError("a start's names, values and tolerance do not fit")
        return found


def make_start(found: Mapping[str, float], tolerance: float) -> Start:
    """Return the start of these numbers."""
    scale = decimal_scale(tolerance)
    values = np.rint(np.array(list(found.values())) * scale) / scale + 0.0  # no negative zero
    if not np.isfinite(values).all():
        raise SimulatorFault("the simulator's start is not finite")
    return start_of(tuple(found), values, tolerance)


def start_of(names: tuple[str, ...], values: Array, tolerance: float) -> Start:
    """Return the start of numbers that are rounded already."""
    digest = hashlib.blake2b("\0".join(names).encode() + values.tobytes(), digest_size=16)
    return Start(names, tuple(values.tolist()), tolerance, digest.hexdigest())


@lru_cache(maxsize=8)
def decimal_scale(tolerance: float) -> float:
    """Return the power of ten that rounds to a tenth of ``tolerance``: short decimals in JSON."""
    return float(10 ** (1 - math.floor(math.log10(tolerance))))


def condensed(world: Array | Sequence[float], most: int = MAX_START_VALUES) -> dict[str, float]:
    """Return a physics state as at most ``most`` numbers; near states stay near.

    Each number of a long state counts in one sum, with a pseudo-random weight of 0.5 to 1 and a
    pseudo-random sign: no change of the state is lost.
    """
    numbers = np.asarray(world, np.float64).ravel()
    if numbers.size <= most:
        return {f"state {number}": value for number, value in enumerate(numbers.tolist())}
    rows = -(-numbers.size // most)
    padded = np.zeros(rows * most)
    padded[: numbers.size] = numbers * _weights(numbers.size)
    sums = padded.reshape(rows, most).sum(axis=0)
    return {f"state sum {number}": value for number, value in enumerate(sums.tolist())}


def condensed_start(start: Start, most: int) -> Start:
    """Return a start with at most ``most`` numbers; equal starts stay equal."""
    return make_start(
        condensed(start.values, most), start.tolerance * -(-len(start.values) // most)
    )


@lru_cache(maxsize=8)
def _weights(size: int) -> Array:
    """Return the weights of a state's numbers; ``RandomState`` is the same in every numpy."""
    rng = np.random.RandomState(0)
    weights: Array = rng.uniform(0.5, 1.0, size) * rng.choice((-1.0, 1.0), size)
    return weights
