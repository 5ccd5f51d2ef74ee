"""The compact set of the starts that trained a policy."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from proctor.starts import DemonstrationStart, StartSource, make_start
from proctor.trained_starts import (
    TRAINED_STARTS_FILE,
    TrainedStarts,
    read_trained_starts,
)
from proctor.types import Start

SOURCE = StartSource("metaworld", "metaworld 3.1.1")
MEGABYTE = 10**6


def demonstrations(
    n: int, numbers: int, varying: int, tolerance: float = 1e-6, first: int = 0
) -> Iterator[DemonstrationStart]:
    """Yield starts of ten tasks: so many numbers, of which some vary by 0.6."""
    rng = np.random.default_rng(7)
    rng.random((first, varying))
    for index in range(first, first + n):
        values = np.zeros(numbers)
        values[:varying] = rng.uniform(-0.3, 0.3, varying)
        start = make_start({f"number {i}": v for i, v in enumerate(values)}, tolerance)
        yield DemonstrationStart(SOURCE, "suite", index % 10, f"seed {index}", start)


@pytest.mark.parametrize(
    ("numbers", "varying"),
    [(8, 5), (37, 9), (45, 34), (64, 64)],
    ids=str,
)
def test_the_starts_of_10000_demonstrations_take_at_most_a_megabyte(
    numbers: int, varying: int
) -> None:
    trained = TrainedStarts.of(demonstrations(10_000, numbers, varying))
    content = trained.encode()
    assert len(trained) == 10_000
    assert len(content) <= MEGABYTE
    again = TrainedStarts.decode(content)
    assert len(again) == 10_000
    assert again.encode() == content


def test_a_file_holds_the_very_numbers_names_and_plans() -> None:
    trained = TrainedStarts.of(demonstrations(40, 12, 5), unknown=["why"])
    again = TrainedStarts.decode(trained.encode())
    assert again == trained
    assert again.digest == trained.digest


def test_starts_without_numbers_are_kept_by_their_digest() -> None:
    start = Start((), (), 1e-6, "0" * 31 + "a")
    trained = TrainedStarts.of([DemonstrationStart(SOURCE, "suite", 0, "seed 3", start)])
    assert TrainedStarts.decode(trained.encode()) == trained


def test_merging_is_a_union_in_any_order() -> None:
    every = list(demonstrations(30, 4, 4))
    one, other = TrainedStarts.of(every[:20]), TrainedStarts.of(every[10:])
    whole = TrainedStarts.of(every)
    assert one.merged(other) == other.merged(one) == whole
    assert whole.merged(TrainedStarts()) == whole


def test_merging_with_condensed_starts_keeps_all_of_them() -> None:
    large = TrainedStarts.decode(TrainedStarts.of(demonstrations(2_000, 64, 64)).encode())
    assert all(group.condensed for group in large.groups.values())
    few = TrainedStarts.of(demonstrations(30, 64, 64, first=5_000))
    assert not any(group.condensed for group in few.groups.values())
    assert len(large.merged(few)) == len(few.merged(large)) == 2_030
    assert len(large.merged(TrainedStarts.of(demonstrations(30, 64, 64)))) == 2_000


def test_demonstrations_of_another_version_or_benchmark_are_said_to_be_unknown() -> None:
    trained = TrainedStarts.of(demonstrations(5, 4, 4))
    assert not trained.for_benchmark(SOURCE).unknown
    newer = trained.for_benchmark(replace(SOURCE, version="metaworld 4.0.0"))
    assert "metaworld 3.1.1" in newer.unknown[0]
    assert len(newer) == 5  # an equal start is equal in any version
    assert "metaworld" in trained.for_benchmark(StartSource("pusht", "gym-pusht 0.1")).unknown[0]
    assert TrainedStarts().for_benchmark(SOURCE).unknown


def test_starts_of_several_benchmarks_are_kept_side_by_side() -> None:
    first = TrainedStarts.of(demonstrations(3, 4, 4))
    versions = ("metaworld 3.0.0", "metaworld 4.0.0")
    others = [
        TrainedStarts.of(
            replace(one, source=replace(SOURCE, version=version))
            for one in demonstrations(2, 4, 4, first=10)
        )
        for version in versions
    ]
    every = first.merged(others[0]).merged(others[1])
    assert TrainedStarts.decode(every.encode()) == every
    assert len(every.for_benchmark(SOURCE).unknown) == 2
    assert len(every.for_benchmark(SOURCE)) == 5


def test_missing_and_damaged_starts_of_a_dataset_are_counted() -> None:
    (good,) = demonstrations(1, 4, 4)
    texts = [good.to_json(), None, "", '{"source": 1}', good.to_json()[:-2]]
    trained = TrainedStarts.of_episodes("somewhere/demos", texts)
    assert len(trained) == 1
    missing, damaged = trained.unknown
    assert missing.startswith("1 of 5 demonstrations of demos has no measured start (")
    assert damaged == "3 of 5 demonstrations of demos have a damaged start"


@pytest.mark.parametrize("value", ["1e999", "NaN", "Infinity"])
def test_a_start_with_numbers_that_are_not_finite_is_damaged(value: str) -> None:
    (good,) = demonstrations(1, 1, 1)
    text = good.to_json().replace(f"[{good.start.values[0]}]", f"[{value}]")
    assert value in text
    with pytest.raises(ValueError):
        DemonstrationStart.from_json(text)


def test_a_start_with_numbers_that_are_too_large_is_unknown() -> None:
    (good,) = demonstrations(1, 1, 1)
    large = replace(good, start=replace(good.start, values=(1e300,)))
    assert TrainedStarts.of([large]).unknown


def test_a_damaged_file_is_an_unknown_set_and_never_a_crash(tmp_path: Path) -> None:
    content = TrainedStarts.of(demonstrations(40, 6, 6)).encode()
    path, rng = tmp_path / TRAINED_STARTS_FILE, random.Random(3)
    assert read_trained_starts(tmp_path) is None
    damaged = 0
    for _ in range(300):
        changed = bytearray(content)
        for _ in range(rng.choice((1, 1, 8))):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        path.write_bytes(bytes(changed[: rng.choice((len(changed), rng.randrange(len(changed))))]))
        found = read_trained_starts(tmp_path)
        assert found is not None
        damaged += bool(found.unknown)
    assert damaged > 200
    path.unlink()
    path.mkdir()
    found = read_trained_starts(tmp_path)
    assert found is not None
    assert found.unknown


def test_a_file_that_unpacks_to_gigabytes_is_damaged(tmp_path: Path) -> None:
    import msgspec

    content = msgspec.msgpack.decode(TrainedStarts.of(demonstrations(4, 6, 6)).encode())
    content["groups"][0]["count"] = 10**7
    (tmp_path / TRAINED_STARTS_FILE).write_bytes(msgspec.msgpack.encode(content))
    found = read_trained_starts(tmp_path)
    assert found is not None
    assert found.unknown
