"""Clusters that cannot be joined are refused in one line, before anything starts."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proctor.errors import MissingExtra, UsageError
from proctor.evaluation.run import Evaluation

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
    assert f"ray://127.0.0.1:{port}: nobody answers there" in said


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
