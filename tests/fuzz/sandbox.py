"""The sandbox for cases: folders for hostile input and output, and checks of every result."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any
from unittest import mock

from proctor import cli
from proctor.errors import ProctorError
from proctor.evaluation import run as evaluation
from proctor.evaluation.session import Session
from proctor.evaluation.video_replay import ReplayedVideos
from proctor.report.server.serve import RunServer
from proctor.types import Outcome
from tests.fuzz.bounds import Taken, alarm, little_room, unheard
from tests.fuzz.sentinel import CANARY, Sentinel

USAGE = 2
SECRET = "the-secret-outside"


class BrokenPromise(AssertionError):
    """A finding: hostile input broke a guarantee. ``gist`` is equal for one cause."""

    def __init__(self, gist: str, text: str) -> None:
        super().__init__(f"{gist}: {text}")
        self.gist = gist


@dataclass(frozen=True)
class Answer:
    """Output of a command."""

    code: int
    out: str
    err: str


class Sandbox:
    """Runs ``proctor`` commands in this process and checks the guarantees for every result."""

    def __init__(self, root: Path, sentinel: Sentinel) -> None:
        self.root = root
        self.out = root / "out" / "deep" / "down"
        """Working directory of commands; ``../..`` from here is a legitimate request."""
        self.inputs = root / "inputs"
        self.outside = root / "outside"
        self.cache = root / "cache"
        """Torch's own folder, created at any time."""
        self.temporary = root / "temporary"
        self._sentinel = sentinel
        self._servers: dict[str | None, RunServer] = {}
        self.held = contextlib.ExitStack()
        """Resources that are closed with the sandbox."""
        self.servers: dict[str, Any] = {}
        """Policy servers by protocol: address and service."""
        self.worst = Taken()
        """Maximum resources of one connection to them."""
        self.outside.mkdir(parents=True)
        self.temporary.mkdir()
        self.run = _good_run(root / "good")
        """Files of an unchanged run."""
        self.checkpoints: list[dict[str, bytes]] = []
        """Files of unchanged checkpoints."""
        self.listener: dict[str, bytes] = {}
        """Files of an unchanged checkpoint with a tokenizer."""
        self.datasets: list[dict[str, bytes]] = []
        """Files of unchanged datasets."""
        (self.outside / "secret.mp4").write_text(SECRET)
        _write_secret_run(self.outside / "run", self.run)
        (self.outside / f"{CANARY}.py").write_text("PLUGIN = print\n")

    @contextlib.contextmanager
    def case(self) -> Iterator[None]:
        """Start a case with empty folders, in ``out``, and clean up."""
        for folder in (self.out, self.inputs):
            folder.mkdir(parents=True)
        os.chdir(self.out)  # default folders are made where one stands
        try:
            yield
        finally:
            os.chdir(self.root)
            for folder in (self.out.parent.parent, self.inputs):
                shutil.rmtree(folder)

    def run_command(self, words: Sequence[str], codes: Sequence[int] = (0, USAGE)) -> Answer:
        """Run a command and check its exit code and that errors are one line.

        Raises:
            BrokenPromise: a traceback, several lines, an unknown code, a write elsewhere, or code
                that was loaded or started.
        """
        out, err = _stream("strict"), _stream("backslashreplace")
        streams = contextlib.redirect_stdout(out), contextlib.redirect_stderr(err)
        with self.watched(f"proctor {words!r}"), streams[0], streams[1]:
            code = cli.main(list(words))
        answer = Answer(code, _text(out), _text(err))
        if code not in codes:
            raise BrokenPromise(f"exit code {code}", answer.err)
        _check_printable(answer)
        if code == USAGE:
            _check_one_line(answer)
        return answer

    def server(self, folder: Path, token: str | None) -> RunServer:
        """Return a server of ``folder`` that does not listen, and requires ``token``."""
        if token not in self._servers:
            self._servers[token] = RunServer(folder, "127.0.0.1", 0)
        server = self._servers[token]
        server.root, server.token = folder.resolve(), token
        return server

    def close(self) -> None:
        """Free the ports."""
        for server in self._servers.values():
            server.server_close()
        self.held.close()

    @contextlib.contextmanager
    def watched(self, what: str) -> Iterator[None]:
        before = self._elsewhere()
        try:
            with self._sentinel.on_duty(self._ours), alarm(), unheard() as said:
                yield
        except BrokenPromise:
            raise
        except BaseException as error:  # noqa: BLE001  whatever it is, it is the finding
            raise BrokenPromise(_gist(error), f"{what}\n{_frames(error)}") from None
        if self._sentinel.seen:
            raise BrokenPromise(
                self._sentinel.seen[0].split()[0], f"{what}: {'; '.join(self._sentinel.seen)}"
            )
        if said:
            raise BrokenPromise("said by a library", f"{what}: {said[0][:2000]!r}")
        changed = dict(self._elsewhere().items() ^ before.items())
        if changed:
            raise BrokenPromise("a write elsewhere", f"{what}: {sorted(changed)}")

    @property
    def _ours(self) -> list[Path]:
        """Folders that a command may write to."""
        return [self.out.parent.parent, self.inputs, self.cache, self.temporary]

    def _elsewhere(self) -> dict[str, int]:
        """Return the modification times of all files around the folders of a case.

        Libraries that are not Python (Arrow, FFmpeg) write without telling audit hooks.
        """
        ours = (*self._ours, self.root / "hub")
        around = [path for path in self.root.iterdir() if path not in ours]
        found = [file for path in around for file in (path, *path.rglob("*"))]
        return {str(path): path.lstat().st_mtime_ns for path in found}

    def check_error(self, error: ProctorError) -> None:
        """Check that errors of the Python API are one line, too."""
        if "\n" in str(error) or len(str(error)) > 2000:
            raise BrokenPromise("not one line", repr(str(error)[:3000]))


def _good_run(folder: Path) -> dict[str, bytes]:
    """Run one real evaluation and return the content of its folder."""
    words = [
        "--policy.type=random", "--env.type=fake", "--env.n_tasks=2", "--eval.n_episodes=2",
        "--eval.batch_size=1", "--video.episodes=0",
    ]  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        cli.main(["eval", *words, f"--output_dir={folder}"])
    names = ("run.json", "episodes.jsonl", "sessions.jsonl", "eval_info.json")
    return {name: (folder / name).read_bytes() for name in names}


def _write_secret_run(folder: Path, run: dict[str, bytes]) -> None:
    """Write a run with a secret in every field that a page or list could show."""
    (folder / "videos" / "point_0").mkdir(parents=True)
    for name, content in run.items():
        (folder / name).write_bytes(content.replace(b'"random"', f'"{SECRET}"'.encode()))
    (folder / "videos" / "point_0" / "episode_0.mp4").write_text(SECRET)


def _stream(errors: str) -> io.TextIOWrapper:
    """Return a stream as strict as a terminal's: text that cannot be encoded is an error."""
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors=errors, write_through=True)


def _text(stream: io.TextIOWrapper) -> str:
    return stream.buffer.getvalue().decode()  # type: ignore[attr-defined]


def _check_printable(answer: Answer) -> None:
    """Check that output has no control codes, which terminals would obey."""
    for text in (answer.out, answer.err):
        odd = [char for char in text if char < " " and char != "\n"]
        if odd:
            raise BrokenPromise("control codes", f"{odd[0]!r} in {text[:2000]!r}")
    longest = max(map(len, answer.err.split("\n")))
    if longest > 2000:
        raise BrokenPromise("a long line", f"{longest} characters: {answer.err[:1000]!r}")


def _check_one_line(answer: Answer) -> None:
    """Check that an error is the last line of the output; warnings may precede it."""
    lines = answer.err.split("\n")
    said = [line for line in lines if not line.startswith("warning: ")]
    if len(said) != 2 or not said[0].startswith("proctor: error: ") or said[1]:
        raise BrokenPromise("not one line", repr(answer.err[:3000]))


def _gist(error: BaseException) -> str:
    """Return the error's type and the line of Proctor's code."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/src/proctor/" in f.filename]
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "elsewhere"
    return f"{type(error).__name__} at {place}"


def _frames(error: BaseException) -> str:
    return "".join(traceback.format_exception(error, limit=-7))


@contextlib.contextmanager
def open_sandbox() -> Iterator[Sandbox]:
    """Yield a sandbox in a process without simulators, network and with little memory."""
    # Libraries must be mapped before the room is measured; and torch's compiler, which is imported
    # where shapes do not fit together, takes as long as a whole case may.
    import av  # noqa: F401
    import pyarrow.parquet  # noqa: F401
    import torch._dynamo  # noqa: F401
    import wandb  # noqa: F401  it makes temporary folders when it is imported

    tempfile.gettempdir()  # it tries to write, once
    sentinel = _SENTINEL[0] if _SENTINEL else Sentinel()
    _SENTINEL[:] = [sentinel]
    here = Path.cwd()
    with contextlib.ExitStack() as stack:
        root = Path(stack.enter_context(_scratch()))
        sandbox = Sandbox(root.resolve(), sentinel)
        for patch in _patches(sandbox):
            stack.enter_context(patch)
        stack.enter_context(little_room())
        os.chdir(sandbox.root)
        stack.callback(sandbox.close)
        try:
            yield sandbox
        finally:
            os.chdir(here)


_SENTINEL: list[Sentinel] = []
"""One audit hook for all sandboxes, since a hook cannot be removed."""


def _scratch() -> tempfile.TemporaryDirectory[str]:
    """Return a folder in memory if possible, which saves much time over many cases."""
    memory = "/dev/shm"
    return tempfile.TemporaryDirectory(
        prefix="proctor-fuzz-", dir=memory if os.access(memory, os.W_OK) else None
    )


def _patches(sandbox: Sandbox) -> list[Any]:
    """Replace the slow parts: simulators, videos, W&B. Reading, checking and writing stay."""
    return [
        mock.patch.object(Session, "run", return_value=None),
        mock.patch.object(Session, "record_videos", return_value=ReplayedVideos()),
        mock.patch.object(evaluation, "wandb_tracking", return_value=contextlib.nullcontext([])),
        mock.patch("proctor.evaluation.preparing.git_commit", return_value=None),
        mock.patch("proctor.evaluation.audit.run_alone", _recorded_again),
        mock.patch("proctor.system.graphics.gl.probe_backends", return_value=[]),
        mock.patch("proctor.policies.lerobot.config.families.entry_points", _installed()),
        mock.patch.object(sys, "path", [*sys.path, str(sandbox.outside)]),
        mock.patch.object(sys, "dont_write_bytecode", True),
        mock.patch("tempfile.tempdir", str(sandbox.temporary)),
        mock.patch.dict(os.environ, {"HF_HUB_OFFLINE": "1", "HF_HOME": str(sandbox.root / "hub")}),
        mock.patch.dict(os.environ, {"TORCHINDUCTOR_CACHE_DIR": str(sandbox.cache)}),
        mock.patch("huggingface_hub.constants.HF_HUB_OFFLINE", True),
        mock.patch("huggingface_hub.constants.HF_HUB_CACHE", str(sandbox.root / "hub")),
    ]


def _installed() -> Any:
    """Return the entry points, read once, since they are the same for all cases."""
    points = list(entry_points(group="proctor.policies"))
    return lambda group, name=None: [point for point in points if name in (None, point.name)]


def _recorded_again(settings: Any, inference: Any, spec: Any, *, in_process: bool) -> Any:
    from tests.run_folders import episode

    return episode(spec.task.task_id, spec.index, Outcome.FAILURE)
