"""`python -m measurements`: its names, and a tiny run of every measurement."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from measurements.__main__ import NAMES

from proctor.benchmarks.recipes.installation import find_interpreter

ROOT = Path(__file__).resolve().parents[3]
TINY = {
    "alternating": [
        *("--tiny", sys.executable, sys.executable, "--", "{python}", "-c", "sum(range(10**6))"),
    ],
    "gpu_host": ["--tiny", "--workers=2"],
    "datasets": ["--tiny", "--ours"],
    "recording": ["--tiny", "--workers=2"],
    "training": ["--tiny", "--ours"],
    "online_speed": ["state", "--tiny", "--ours", "--rounds=1"],
    "peers": ["--tiny", "--ours"],
    "loading": ["--tiny", "--batches=1", "--shards=2"],
    "foreign_worker": ["--tiny", f"--python={sys.executable}"],
    "online_gym_hil": [
        *("--seeds=1", "--demonstrations=1", "--steps=20", "--clone-updates=5"),
        *("--tests=1", "--episode-length=60"),
    ],
    "ten_minutes": [
        *("record", "train", "choose", "examine", "perturb"),
        *("--perturb=language", "--no-paraphrases", "--tiny"),
    ],
}
"""Flags of a tiny run; ``--tiny`` is enough for the others."""


def measure(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "measurements", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


def test_the_list_names_every_measurement_and_what_it_measures() -> None:
    done = measure("--list")
    assert done.returncode == 0, done.stderr
    lines = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
    assert [name for name, _ in lines] == list(NAMES)
    assert all(summary.endswith(".") for _, summary in lines)


@pytest.mark.parametrize("words", [["nothing"], ["engine", "nothing"]])
def test_an_unknown_name_or_part_is_refused_with_the_known_ones(words: list[str]) -> None:
    done = measure(*words)
    assert done.returncode == 2
    assert "choose from" in done.stderr


def test_two_tables_of_digests_are_compared(tmp_path: Path) -> None:
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    assert measure("digests", str(before), "--only=fake").returncode == 0
    same = measure("digests", str(after), "--only=fake", f"--against={before}")
    assert same.returncode == 0, same.stdout
    before.write_text(before.read_text().replace('"failure', '"other', 1))
    other = measure("digests", str(after), "--only=fake", f"--against={before}")
    assert other.returncode == 1
    assert "1 differ" in other.stdout


BURN = """
import os, sys, time
if os.fork() == 0 and os.fork() == 0:  # an orphan: its parent has ended without waiting for it
    cost = int(sys.argv[2]) * (0.1 if sys.argv[1] == "before" else 0.2)
    while time.process_time() < 0.1 + cost:
        pass
    os._exit(0)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process adopt orphans")
def test_two_checkouts_are_compared_by_the_cpu_time_of_all_descendants_for_a_unit() -> None:
    done = measure(
        *("alternating", sys.executable, sys.executable, "--units=1,3", "--rounds=2"),
        *("--", "{python}", "-c", BURN, "{side}", "{n}"),
    )
    assert done.returncode == 0, done.stderr
    (row,) = [line for line in done.stdout.splitlines() if line.startswith("| one unit")]
    before, after, ratio = row.strip("| ").split(" | ")[1:]
    assert float(before) == pytest.approx(0.1, rel=0.3)
    assert float(after) == pytest.approx(0.2, rel=0.3)
    assert float(ratio.split()[0]) == pytest.approx(2.0, rel=0.3)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name != "digests"])
def test_a_tiny_run_of_every_measurement(name: str, tmp_path: Path) -> None:
    flags = TINY.get(name, ["--tiny"])
    if name == "scaling":
        flags = [*flags, f"--output={tmp_path}"]
    if name == "ten_minutes":
        flags = [*flags, f"--work={tmp_path}"]
    if name == "warp_drawing" and find_interpreter("warp") is None:
        pytest.skip("run: proctor benchmarks install warp")
    done = measure(name, *flags)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_tiny_training_is_corrected_in_rounds(tmp_path: Path) -> None:
    stages = ["record", "rounds", "examine"]
    done = measure("ten_minutes", *stages, "--drop", "--tiny", f"--work={tmp_path}")
    assert done.returncode == 0, done.stderr
    assert "== round 2" in done.stdout
    assert "== ends after --minutes" in done.stdout
    (last,) = re.findall(r"--steps=(\d+) --scheduler.num_decay_steps=(\d+)", done.stdout)
    assert int(last[1]) == pytest.approx(int(last[0]) / 4, abs=1)
    times = json.loads((tmp_path / "times.json").read_text())
    assert list(times) == stages
    assert (tmp_path / "all-2").is_dir()
    assert not (tmp_path / "all-1").exists()
