"""Opening a benchmark for the doctor: crashes and hangs are findings."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import pytest

from proctor.benchmarks.base import BenchmarkPlugin
from proctor.benchmarks.fake import Fake, FakeConfig, FakeSim
from proctor.errors import MissingExtra, NoGraphics, UsageError
from proctor.evaluation.smoke_test import (
    SmokeTestStatus,
    open_benchmark,
    smoke_test_all,
    smoke_test_one,
)
from proctor.types import Task

HERE = "tests.unit.evaluation.test_smoke_test"


class Crashes(Fake):
    def make_sim(self, task: Task) -> FakeSim:
        os.abort()


class Hangs(Fake):
    def make_sim(self, task: Task) -> FakeSim:
        time.sleep(60)
        return super().make_sim(task)


class Raises(Fake):
    def make_sim(self, task: Task) -> FakeSim:
        raise ModuleNotFoundError("No module named 'packaging'")


class NotInstalled(Fake):
    def preflight(self, keys: Sequence[str]) -> dict[str, str]:
        raise MissingExtra("PushT", "pusht")


class Refuses(Fake):
    def preflight(self, keys: Sequence[str]) -> dict[str, str]:
        raise UsageError("OpenCV does not load; run: apt-get install libgl1")


class Lacks(Fake):
    def lacking(self) -> str:
        return "its assets are not there; run: proctor eval --env.type=this"

    def preflight(self, keys: Sequence[str]) -> dict[str, str]:
        raise AssertionError("downloads")


class Blind(Fake):
    def preflight(self, keys: Sequence[str]) -> dict[str, str]:
        if keys:
            raise NoGraphics("nothing renders")
        return {}


def plugin(benchmark: type[Fake]) -> BenchmarkPlugin:
    return BenchmarkPlugin(FakeConfig, benchmark, "for tests")


CRASHES, HANGS, RAISES = plugin(Crashes), plugin(Hangs), plugin(Raises)
NOT_INSTALLED, REFUSES = plugin(NotInstalled), plugin(Refuses)
LACKS, BLIND = plugin(Lacks), plugin(Blind)


def test_a_benchmark_that_works_is_reset_stepped_and_drawn() -> None:
    trial = smoke_test_one("fake", {})
    assert trial.found is SmokeTestStatus.OPENED
    assert trial.text.startswith("opens, resets, steps, renders (point-0, ")


def test_a_simulator_that_crashes_is_a_finding() -> None:
    trial = smoke_test_one(f"{HERE}:CRASHES", {})
    assert (trial.found, trial.text) == (SmokeTestStatus.BROKEN, "crashes (SIGABRT)")
    assert trial.fix == f"python -m proctor.evaluation.smoke_test {HERE}:CRASHES"


def test_a_simulator_that_hangs_is_a_finding() -> None:
    trial = smoke_test_one(f"{HERE}:HANGS", {}, limit_s=1)
    assert (trial.found, trial.text) == (SmokeTestStatus.BROKEN, "is not open after 1 s")


def test_a_package_that_is_missing_is_named() -> None:
    trial = smoke_test_one(f"{HERE}:RAISES", {})
    assert trial.found is SmokeTestStatus.BROKEN
    assert trial.text.startswith("ModuleNotFoundError: No module named 'packaging' (evaluation/")


def test_what_is_not_installed_is_said_with_the_pip_line() -> None:
    trial = open_benchmark(f"{HERE}:NOT_INSTALLED")
    assert trial.found is SmokeTestStatus.NOT_INSTALLED
    assert trial.text == "PushT is not installed; run: pip install 'proctor[pusht]'"


def test_a_refusal_brings_its_own_command() -> None:
    trial = open_benchmark(f"{HERE}:REFUSES")
    assert (trial.found, trial.text) == (SmokeTestStatus.BROKEN, "OpenCV does not load")
    assert trial.fix == "apt-get install libgl1"


def test_what_would_be_downloaded_is_named_and_not_downloaded() -> None:
    trial = open_benchmark(f"{HERE}:LACKS")
    assert (trial.found, trial.text) == (SmokeTestStatus.LACKING, "its assets are not there")
    assert trial.fix == "proctor eval --env.type=this"


def test_where_nothing_renders_the_rest_is_still_tried() -> None:
    trial = open_benchmark(f"{HERE}:BLIND")
    assert trial.found is SmokeTestStatus.OPENED
    assert trial.text.endswith("no image, since nothing here renders")


def test_every_benchmark_that_opens_without_further_flags_is_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[str] = []
    monkeypatch.setattr(
        "proctor.evaluation.smoke_test.smoke_test_one", lambda name, environment: tried.append(name)
    )
    list(smoke_test_all({}, at_once=1))
    assert tried == [
        "aloha",
        "gym",
        "gym_hil",
        "libero",
        "libero_plus",
        "libero_pro",
        "metaworld",
        "pusht",
        "so101",
    ]
