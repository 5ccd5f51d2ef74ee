"""Fuzzing of run folders: report, compare, --resume, --against and audit."""

from __future__ import annotations

import errno
import json
import os
import socket
from pathlib import Path
from typing import Any
from unittest import mock

from hypothesis import strategies as st

from proctor.types import Outcome
from tests.fuzz.hostile import Draw, json_bytes, mutated, spoiled, texts, values
from tests.fuzz.sandbox import Sandbox

Files = dict[str, bytes]
"""Content of every file of a folder, by name."""

_LINK_NAMES = [
    "run.json", ".run.json.1.part", "episodes.jsonl", "sessions.jsonl", "eval_info.json", ".lock",
    ".eval_info.json.1.part", "report.html", ".report.html.1.part", ".compare.html.1.part",
    "workers.log", "videos", "videos/point_0", "videos/point_0/episode_0.mp4",
]  # fmt: skip


def write_files(folder: Path, files: Files) -> None:
    """Write a folder."""
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)


@st.composite
def hostile_files(draw: Draw, valid: Files) -> Files:
    """Return a folder's files with one or two of them changed according to their format."""
    files = dict(valid)
    for _ in range(draw(st.integers(1, 2))):
        name = draw(st.sampled_from(sorted(valid)))
        if name.endswith(".jsonl"):
            files[name] = draw(hostile_lines(valid[name]))
        elif name.endswith(".json"):
            files[name] = draw(json_bytes(json.loads(valid[name])))
        else:
            files[name] = draw(spoiled(valid[name]))
    return files


@st.composite
def hostile_lines(draw: Draw, valid: bytes) -> bytes:
    """Return a JSON-lines file with changed, cut, repeated or inserted lines."""
    lines = valid.splitlines()
    for _ in range(draw(st.integers(1, 2))):
        at = draw(st.integers(0, len(lines) - 1))
        how = draw(
            st.sampled_from(
                ["mutate", "mutate", "mutate", "lie", "lie", "spoil", "double", "whole"]
            )
        )
        if how == "lie" and lines[at][:1] == b"{":
            lines[at] = json.dumps(_loaded(lines[at]) | draw(_lies)).encode()
        elif how == "mutate" and lines[at][:1] == b"{":
            with_nan = draw(mutated(_loaded(lines[at])))
            lines[at] = json.dumps(with_nan).encode()
        elif how == "double":
            lines.insert(at, lines[draw(st.integers(0, len(lines) - 1))])
        else:
            lines[at] = draw(spoiled(lines[at]))
    return b"\n".join(lines) + draw(st.sampled_from([b"\n", b"", b"\n\n"]))


_outcomes = st.one_of(st.sampled_from([outcome.value for outcome in Outcome]), texts)
_flags = st.sampled_from([True, False, None])
_lies = st.fixed_dictionaries(
    {},
    optional={
        "outcome": _outcomes,
        "success_once": _flags,
        "success_at_end": _flags,
        "world": st.one_of(st.sampled_from(["", "seed 1000", "init 0"]), values),
        "init_state": st.sampled_from([None, 0, 1, 2**53, -1]),
        "steps": st.sampled_from([None, 0, 1, 2**53]),
        "digest": st.one_of(st.none(), texts),
        "error": st.one_of(st.none(), texts, st.sampled_from(["x" * 100_000, "a\x1b[2J\n" * 50])),
        "seed": st.sampled_from([0, 1000, 1001, 2**31]),
    },
)
"""Fields that are valid alone and contradict each other."""


def _loaded(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return {}


def plant(draw: Draw, folder: Path, sandbox: Sandbox) -> None:
    """Put something that is not a regular file into the folder, one time in four."""
    if draw(st.integers(0, 3)):
        return
    place = folder / draw(st.sampled_from(_LINK_NAMES))
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.exists():
        place.unlink()
    target = draw(st.sampled_from(["new", "secret.mp4", ".", "/dev/zero", "/dev/full", "self"]))
    what = draw(st.sampled_from(["link", "link", "link", "folder", "fifo"]))
    if what == "folder":
        place.mkdir()
    elif what == "fifo":
        os.mkfifo(place)
    else:
        place.symlink_to(place.name if target == "self" else sandbox.outside / target)


def _hostile_run(draw: Draw, sandbox: Sandbox, name: str = "run") -> Path:
    folder = sandbox.inputs / name
    write_files(folder, draw(hostile_files(sandbox.run)))
    plant(draw, folder, sandbox)
    return folder


def report(draw: Draw, sandbox: Sandbox) -> None:
    """``report`` of a hostile run folder."""
    sandbox.run_command(["report", str(_hostile_run(draw, sandbox))])


def compare(draw: Draw, sandbox: Sandbox) -> None:
    """``compare`` of a good run with a hostile one, in either order, and of two hostile ones."""
    good = sandbox.inputs / "good"
    write_files(good, sandbox.run)
    paths = [good, _hostile_run(draw, sandbox)]
    if not draw(st.integers(0, 3)):
        paths[0] = _hostile_run(draw, sandbox, "other")
    words = [str(path) for path in draw(st.permutations(paths))]
    words += draw(st.sampled_from([[], ["--unpaired"], ["--fail-if-worse=0.1"], ["--json=x.json"]]))
    sandbox.run_command(["compare", *words], codes=(0, 2, 3))


def resume(draw: Draw, sandbox: Sandbox) -> None:
    """``eval --resume`` of a hostile run folder."""
    sandbox.run_command(
        ["eval", "--resume", f"--output_dir={_hostile_run(draw, sandbox)}"], codes=(0, 1, 2)
    )


def against(draw: Draw, sandbox: Sandbox) -> None:
    """``eval --against`` a hostile run folder."""
    path = _hostile_run(draw, sandbox)
    sandbox.run_command(["eval", "--policy.type=random", "--env.type=fake", f"--against={path}"])


def audit(draw: Draw, sandbox: Sandbox) -> None:
    """``audit`` of a hostile run folder."""
    sandbox.run_command(
        ["audit", str(_hostile_run(draw, sandbox)), "--episodes=2"], codes=(0, 1, 2)
    )


def claims(draw: Draw, sandbox: Sandbox) -> None:
    """``eval --resume`` on a file system without locks, in a folder that somebody claimed."""
    folder = sandbox.inputs / "run"
    write_files(folder, sandbox.run)
    pids = st.sampled_from(["1", "0", "-1", "2147483647", "9" * 30, str(os.getpid()), "x"])
    host = draw(st.sampled_from([socket.gethostname(), "elsewhere", "", "a b"]))
    claim = f"{draw(pids)} {host}\n".encode()
    (folder / ".claim").write_bytes(draw(st.one_of(st.just(claim), spoiled(claim))))
    if not draw(st.integers(0, 9)):
        (folder / ".claim").unlink()
        (folder / ".claim").symlink_to(draw(st.sampled_from(["/dev/zero", "nowhere", ".claim"])))
    reason = draw(st.sampled_from([errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EIO]))
    with mock.patch("fcntl.flock", side_effect=OSError(reason, os.strerror(reason))):
        sandbox.run_command(["eval", "--resume", f"--output_dir={folder}"], codes=(0, 1, 2))
