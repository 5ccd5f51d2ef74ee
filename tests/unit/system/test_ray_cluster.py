"""Clusters that cannot be joined are refused in one line, before anything starts."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proctor.cli import main
from proctor.errors import MissingExtra, UsageError
from proctor.evaluation.run import Evaluation
from proctor.report.reproduce import episode_base

MakeRun = Callable[..., Evaluation]


def refused(run: MakeRun, tmp_path: Path, **flags: Any) -> str:
    with pytest.raises(UsageError) as error:
        run(output_dir=str(tmp_path / "out"), **flags)
    assert not (tmp_path / "out").exists()
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("address", ["", "nonsense", "ray://", "ray://host", "ray://a b:1"])
def test_what_is_no_address_is_refused_with_what_is(
    run: MakeRun, tmp_path: Path, address: str
) -> None:
    assert "choose auto, local or ray://HOST:PORT" in refused(run, tmp_path, cluster=address)


def test_an_address_where_nobody_listens_is_refused_at_once(run: MakeRun, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    said = refused(run, tmp_path, cluster=f"ray://127.0.0.1:{port}")
    assert f"ray://127.0.0.1:{port}: Ray does not answer there" in said


def test_a_server_of_something_else_is_told_at_once(run: MakeRun, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            line, _ = server.accept()
            with line:
                line.recv(100)
                line.sendall(b"HTTP/1.1 400 Bad Request")

        threading.Thread(target=answer, daemon=True).start()
        said = refused(run, tmp_path, cluster=f"ray://127.0.0.1:{server.getsockname()[1]}")
    assert "it is no gRPC server" in said


def test_without_ray_the_extra_is_named(
    run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"Ray is not installed; run: pip install 'proctor\[ray"):
        run(output_dir=str(tmp_path / "out"), cluster="local")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ({"eval__scheduler": "lockstep"}, "lockstep plays here only"),
        ({"eval__use_async_envs": False}, "simulators have processes of their own there"),
    ],
)
def test_what_a_cluster_cannot_do_is_refused(
    run: MakeRun, tmp_path: Path, flags: dict[str, Any], why: str
) -> None:
    assert why in refused(run, tmp_path, cluster="local", **flags)


def test_a_cluster_is_not_told_the_flags_of_the_command() -> None:
    told = (
        "from proctor.system.ray_cluster import join_cluster; leave = join_cluster('local'); "
        "import ray; "
        "print([job['Entrypoint'] for job in ray._private.state.jobs()]); leave()"
    )
    command = [sys.executable, "-c", told, "--policy.api_key=SESAME"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout.strip() == "['proctor']", done.stderr


def test_a_run_of_a_cluster_is_resumed_audited_and_shown_without_one(
    run: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run(cluster="none").path
    record = json.loads((folder / "run.json").read_text())
    record["config"]["given"]["cluster"] = "ray://gone.invalid:10001"
    (folder / "run.json").write_text(json.dumps(record))
    assert main(["eval", "--resume", f"--output_dir={folder}", "--cluster=none"]) == 0
    assert main(["audit", str(folder)]) == 0
    assert main(["report", str(folder)]) == 0
    said = episode_base(**record["config"])
    assert "--env.type=fake" in said
    assert "cluster" not in said
