"""Runs on a Ray cluster of two local nodes: the same bits under any kill, and no leftovers."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from proctor.runs.journal import read_journal
from tests.chaos.on_ray import Nodes, disturbed, played, two_nodes
from tests.recordings import columns, record, same

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(find_spec("ray") is None, reason="needs the ray extra"),
]

FAKE = {
    "policy.type": "random",
    "env.type": "fake",
    "env.n_tasks": 3,
    "env.step_ms": 2,
    "eval.n_episodes": 30,
    "video.episodes": 0,
}


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with two_nodes() as nodes:
        yield nodes


def test_a_disturbed_run_on_two_nodes_equals_that_of_one_process(
    nodes: Nodes, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    expected = played(FAKE, tmp_path / "here")
    verdict = disturbed(nodes, FAKE, tmp_path / "run", expected, random.Random(0))
    assert sorted(verdict.landed) == ["engine", "node", "worker"]
    assert verdict.sound, verdict
    said = capfd.readouterr()
    assert "cluster: auto: 3 nodes, 2 cores, 0 GPUs" in said.err
    assert "2 simulators\n" in said.err
    assert "lost node" in said.err
    assert "raylet" not in said.out + said.err  # Ray itself prints nothing


def test_a_run_stopped_on_a_cluster_is_completed_locally(nodes: Nodes, tmp_path: Path) -> None:
    from tests.unit.evaluation.test_recording import StopAfter

    whole = played(FAKE, tmp_path / "here")
    with pytest.raises(KeyboardInterrupt):
        played(FAKE, tmp_path / "run", "auto", [StopAfter(20)])
    assert 0 < len(read_journal(tmp_path / "run").rows) < len(whole)
    assert played(FAKE | {"resume": True}, tmp_path / "run") == whole


def test_a_stop_rule_ends_a_run_on_a_cluster_in_whole_rounds(nodes: Nodes, tmp_path: Path) -> None:
    rule = FAKE | {"eval.n_episodes": 200, "eval.stop_when": "ci_width<0.3", "env.step_ms": 0}
    ended = played(rule, tmp_path / "run", "auto")
    of_task = [sum(key[1] == task for key in ended) for task in range(3)]
    assert 0 < of_task[0] < 200
    assert len(set(of_task)) == 1


def test_videos_are_made_on_the_nodes_and_stored_here(nodes: Nodes, tmp_path: Path) -> None:
    few = FAKE | {"eval.n_episodes": 2, "video.episodes": 1, "video.which": "first"}
    played(few, tmp_path / "run", "auto")
    films = list((tmp_path / "run" / "videos").rglob("*.mp4"))
    assert len(films) == 3
    assert all(film.read_bytes()[4:8] == b"ftyp" for film in films)


def test_a_dataset_recorded_on_a_cluster_has_the_same_content(nodes: Nodes, tmp_path: Path) -> None:
    record(tmp_path / "here", record__n_episodes=6)
    recorded = record(tmp_path / "there", record__n_episodes=6, cluster="auto")
    assert recorded.complete
    assert same(columns(tmp_path / "here"), columns(tmp_path / "there"))
    left = tmp_path / "there.recording" / "takes"
    assert not left.exists()


def test_ctrl_c_stops_a_local_cluster_without_leftovers(tmp_path: Path) -> None:
    folder, temporary = tmp_path / "run", Path("/tmp") / f"pr{time.time_ns() % 10**9}"
    temporary.mkdir()
    words = [f"--{name}={value}" for name, value in (FAKE | {"env.step_ms": 20}).items()]
    command = [sys.executable, "-m", "proctor.cli", "eval", *words]
    process = subprocess.Popen(
        [*command, "--cluster=local", f"--output_dir={folder}"],
        env={**dict(psutil.Process().environ()), "TMPDIR": str(temporary)},
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    try:
        end = time.monotonic() + 120
        while not read_journal(folder).rows:
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.2)
        below = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)
        assert process.returncode == 130
        assert "Traceback" not in said
        assert "proctor eval --resume" in said
        _, alive = psutil.wait_procs(below, timeout=120)
        assert not alive
        assert not list(temporary.iterdir())
    finally:
        process.kill()
        shutil.rmtree(temporary)


LISTENING = """
import os, psutil
from proctor.system.ray_cluster import join_cluster
leave = join_cluster("local")
me = psutil.Process()
for process in (me, *me.children(recursive=True)):
    for one in process.net_connections("tcp"):
        if one.status == psutil.CONN_LISTEN:
            print("listens", one.laddr.ip)
    if process.pid != me.pid:
        print("key" if "planted-secret" in process.environ().values() else "no key")
leave()
"""


def test_a_local_cluster_listens_on_loopback_only_and_holds_no_key() -> None:
    environment = os.environ | {
        "PROCTOR_API_KEY": "planted-secret",
        "WANDB_API_KEY": "planted-secret",
    }
    found = subprocess.run(
        [sys.executable, "-c", LISTENING],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = set(found.stdout.splitlines())
    assert "key" not in lines
    addresses = {line.split()[1].removeprefix("::ffff:") for line in lines if "listens" in line}
    assert addresses == {"127.0.0.1"}
