"""Ray clusters that cannot be joined are refused in one line, before anything starts."""

from __future__ import annotations

import json
import os
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
from proctor.report.claims.reproduce import episode_command_prefix
from tests.refusals import refuses
from tests.unit.project.test_structure import modules

MakeRun = Callable[..., Evaluation]


def refused(run: MakeRun, tmp_path: Path, **flags: Any) -> UsageError:
    """Return the error of a run that is refused in one line, before its folder exists."""
    with pytest.raises(UsageError) as error:
        run(output_dir=str(tmp_path / "out"), **flags)
    assert not (tmp_path / "out").exists()
    assert "\n" not in str(error.value)
    return error.value


@pytest.mark.parametrize("address", ["", "nonsense", "ray://", "ray://host", "ray://a b:1"])
def test_an_invalid_address_is_refused_with_the_valid_forms(
    run: MakeRun, tmp_path: Path, address: str
) -> None:
    assert "auto, local or ray://HOST:PORT" in str(refused(run, tmp_path, cluster=address))


def test_an_address_without_a_server_is_refused_at_once(run: MakeRun, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    error = refused(run, tmp_path, cluster=f"ray://127.0.0.1:{port}")
    assert error.code == "cluster.unreachable"
    assert f"ray://127.0.0.1:{port}" in str(error)


def test_a_server_that_is_not_ray_is_refused_at_once(
    run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proctor.system.ray_cluster._TIMEOUT_S", 60.0)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(100)
                connection.sendall(b"HTTP/1.1 400 Bad Request")

        threading.Thread(target=answer, daemon=True).start()
        error = refused(run, tmp_path, cluster=f"ray://127.0.0.1:{server.getsockname()[1]}")
    assert error.code == "cluster.unreachable"
    assert "gRPC" in str(error)


def test_without_ray_the_extra_is_named(
    run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with refuses(MissingExtra, "extra.missing") as missing:
        run(output_dir=str(tmp_path / "out"), cluster="local")
    assert "proctor[ray]" in str(missing.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"eval__scheduler": "lockstep"}, "--eval.scheduler"),
        ({"eval__use_async_envs": False}, "--eval.use_async_envs"),
    ],
)
def test_flags_that_a_cluster_cannot_support_are_refused(
    run: MakeRun, tmp_path: Path, flags: dict[str, Any], named: str
) -> None:
    assert named in str(refused(run, tmp_path, cluster="local", **flags))


_STARTED = """
import json, psutil
from proctor.system.ray_cluster import join_cluster
leave = join_cluster("local")
import ray
print("entrypoints", json.dumps([job["Entrypoint"] for job in ray._private.state.jobs()]))
environments, addresses = {}, set()
for daemon in psutil.Process().children(recursive=True):
    environments[" ".join(daemon.cmdline())[:80]] = sorted(daemon.environ().values())
    listening = (one for one in daemon.net_connections() if one.status == psutil.CONN_LISTEN)
    addresses |= {one.laddr.ip for one in listening}
print("environments", json.dumps(environments))
print("addresses", json.dumps(sorted(addresses)))
leave()
"""


def test_a_local_cluster_listens_on_loopback_and_sees_neither_flags_nor_keys() -> None:
    keys = {"PROCTOR_API_KEY": "SESAME-1", "WANDB_API_KEY": "SESAME-2"}
    command = [sys.executable, "-c", _STARTED, "--policy.api_key=SESAME-3"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | keys)
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert json.loads(said["entrypoints"]) == ["proctor"], done.stderr
    assert len(json.loads(said["environments"])) > 1, "Ray has daemons"
    assert "SESAME" not in done.stdout
    assert set(json.loads(said["addresses"])) <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


def test_one_module_starts_a_cluster() -> None:
    starting = {
        name for name, path in modules().items() if "ray.init(" in path.read_text(encoding="utf-8")
    }
    assert starting == {"proctor.system.ray_cluster"}


def test_a_cluster_run_is_resumed_audited_and_reported_without_a_cluster(
    run: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run(cluster="none").path
    record = json.loads((folder / "run.json").read_text())
    record["config"]["given"]["cluster"] = "ray://gone.invalid:10001"
    (folder / "run.json").write_text(json.dumps(record))
    assert main(["eval", "--resume", f"--output_dir={folder}", "--cluster=none"]) == 0
    assert main(["audit", str(folder)]) == 0
    assert main(["report", str(folder)]) == 0
    config = record["config"]
    said = episode_command_prefix(config["given"], config["resolved"])
    assert "--env.type=fake" in said
    assert "cluster" not in said
