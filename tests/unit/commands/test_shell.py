"""The command line when its surroundings are not kind: readers, terminals and folders that go."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from proctor.engine.processes import fork_server
from proctor.errors import UsageError
from proctor.runs.journal import read_journal
from tests.refusals import refuses
from tests.unit.commands.test_cli import LONG_RUN, PROCTOR, SLOW_RUN, wait_for_episodes

QUICK_RUN = [
    "eval", "--policy.type=random", "--env.type=fake", "--eval.n_episodes=4",
    "--eval.batch_size=2", "--video.episodes=0",
]  # fmt: skip


@pytest.fixture
def own(tmp_path: Path) -> dict[str, str]:
    """An environment with a temporary folder of its own."""
    (tmp_path / "tmp").mkdir()
    return {**os.environ, "TMPDIR": str(tmp_path / "tmp")}


@pytest.fixture
def piped(tmp_path: Path, own: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A long run in ``run``, in a session of its own, all it says in one pipe."""
    with piped_run(tmp_path, own, LONG_RUN) as process:
        yield process


def piped_run(tmp_path: Path, own: dict[str, str], words: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*PROCTOR, *words, f"--output_dir={tmp_path / 'run'}"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=own,
        start_new_session=True,
    )  # fmt: skip


def proctor_where_nothing_locks(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a command on file systems without locks."""
    path = str(Path(__file__).parents[1] / "no_locks")
    return subprocess.run(
        [*PROCTOR, *words], capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip


def outcomes(folder: Path) -> list[str]:
    return [row.outcome.value for row in read_journal(folder).rows]


def test_a_run_goes_on_when_its_reader_goes_away(tmp_path: Path, own: dict[str, str]) -> None:
    with piped_run(tmp_path, own, SLOW_RUN) as piped:
        assert piped.stdout is not None
        assert "40 episodes" in piped.stdout.readline()
        piped.stdout.close()
        assert piped.wait(60) == 0
    assert len(outcomes(tmp_path / "run")) == 40


def test_ctrl_c_in_a_pipe_is_130_although_its_reader_ends_with_it(
    tmp_path: Path, piped: subprocess.Popen[str]
) -> None:
    wait_for_episodes(tmp_path / "run", 2)
    assert piped.stdout is not None
    piped.stdout.close()
    piped.send_signal(signal.SIGINT)
    assert piped.wait(60) == 130
    assert (tmp_path / "run" / "report.html").exists()


@pytest.mark.parametrize(
    "closed",
    [
        *(pytest.param(one, marks=pytest.mark.slow) for one in (">&-", "2>&-", "<&-")),
        "<&- >&- 2>&-",
    ],
)
def test_descriptors_that_are_closed_cost_no_episode(tmp_path: Path, closed: str) -> None:
    command = [*PROCTOR, *QUICK_RUN, f"--output_dir={tmp_path / 'run'}"]
    done = subprocess.run(
        ["sh", "-c", f'"$@" {closed}', "sh", *command], capture_output=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert sorted(set(outcomes(tmp_path / "run"))) in (["failure"], ["failure", "success"])


def test_closed_descriptors_cost_nothing_from_python_either(tmp_path: Path) -> None:
    program = (
        "import proctor\n"
        "run = proctor.evaluate(policy={'type': 'random'}, env={'type': 'fake'},\n"
        f"    eval={{'n_episodes': 2, 'batch_size': 2}}, output_dir={str(tmp_path / 'run')!r})\n"
        "assert run.tally.errors == 0\n"
    )
    command = ["sh", "-c", '"$@" 2>&- >&-', "sh", sys.executable, "-c", program]
    assert subprocess.run(command, timeout=60).returncode == 0
    assert len(outcomes(tmp_path / "run")) == 2


def test_output_to_a_full_disk_is_one_line_and_changes_no_exit_code(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*PROCTOR, *QUICK_RUN, f"--output_dir={tmp_path / 'run'}"],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=60,
        )  # fmt: skip
    assert done.returncode == 0
    assert done.stderr.splitlines()[-1] == (
        "proctor: warning: standard output was not written: No space left on device"
    )
    assert "Traceback" not in done.stderr


def test_errors_to_a_full_disk_change_no_exit_code() -> None:
    with Path("/dev/full").open("w") as full:
        assert subprocess.run([*PROCTOR, "nonsense"], stderr=full, timeout=60).returncode == 2


def test_a_terminal_that_hangs_up_is_an_interruption_of_its_own(
    tmp_path: Path, piped: subprocess.Popen[str]
) -> None:
    wait_for_episodes(tmp_path / "run", 2)
    family = psutil.Process(piped.pid).children(recursive=True)
    os.killpg(piped.pid, signal.SIGHUP)
    time.sleep(0.02)
    os.killpg(piped.pid, signal.SIGHUP)  # the kernel sends one, the shell another
    said, _ = piped.communicate(timeout=60)
    assert piped.returncode == 129
    assert f"proctor eval --resume --output_dir={tmp_path / 'run'}" in said
    assert "Traceback" not in said
    assert (tmp_path / "run" / "report.html").exists()
    assert psutil.wait_procs(family, timeout=60)[1] == []
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_terminal_that_is_gone_leaves_the_report_and_nothing_else(
    tmp_path: Path, own: dict[str, str]
) -> None:
    """As when ssh is cut: the kernel sends SIGHUP, and writing to the terminal fails from then."""
    pid, terminal = pty.fork()
    if pid == 0:
        words = [*PROCTOR, *LONG_RUN, f"--output_dir={tmp_path / 'run'}"]
        os.execve(words[0], words, {**own, "TERM": "xterm"})
    wait_for_episodes(tmp_path / "run", 2)
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 129
    assert (tmp_path / "run" / "report.html").exists()
    assert 2 <= len(outcomes(tmp_path / "run")) < 40
    assert list((tmp_path / "tmp").iterdir()) == []


def test_under_nohup_a_run_goes_on_when_the_terminal_hangs_up(tmp_path: Path) -> None:
    command = ["nohup", *PROCTOR, *QUICK_RUN, "--env.step_ms=5", "--env.endless=true"]
    process = subprocess.Popen(
        [*command, f"--output_dir={tmp_path / 'run'}"],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    wait_for_episodes(tmp_path / "run", 1)
    os.killpg(process.pid, signal.SIGHUP)
    assert process.wait(60) == 0
    assert len(outcomes(tmp_path / "run")) == 4


def test_a_working_directory_that_is_gone_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    command = 'rmdir ../gone && "$@"'
    done = subprocess.run(
        ["sh", "-c", command, "sh", *PROCTOR, *QUICK_RUN, f"--output_dir={tmp_path / 'run'}"],
        cwd=tmp_path / "gone", capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == (
        "proctor: error: the working directory is gone; change to one that exists\n"
    )
    assert not (tmp_path / "run").exists()


def test_a_working_directory_that_goes_while_a_worker_has_to_be_replaced_is_one_line(
    tmp_path: Path,
) -> None:
    (tmp_path / "gone").mkdir()
    process = subprocess.Popen(
        [*PROCTOR, *LONG_RUN, f"--output_dir={tmp_path / 'run'}"],
        cwd=tmp_path / "gone", stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    wait_for_episodes(tmp_path / "run", 2)
    (tmp_path / "gone").rmdir()
    (server,) = psutil.Process(process.pid).children()[-1:]
    for worker in server.children():
        worker.kill()
    _, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert said.splitlines()[-1] == (
        "proctor: error: no worker can start: the working directory or the temporary folder is gone"
    )
    assert "Traceback" not in said


def test_a_temporary_folder_with_a_long_name_will_do(tmp_path: Path) -> None:
    """A socket's name has 108 bytes; multiprocessing puts one there."""
    long = tmp_path / ("t" * 100)
    long.mkdir()
    done = subprocess.run(
        [*PROCTOR, *QUICK_RUN, f"--output_dir={tmp_path / 'run'}"],
        env={**os.environ, "TMPDIR": str(long)}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert list(long.iterdir()) == []


def test_a_temporary_folder_too_long_with_none_beside_it_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("t" * 100)))
    monkeypatch.setattr(fork_server, "_SHORT_PLACES", ())
    with refuses(UsageError, "disk.temporary-path-too-long") as refused:
        fork_server.socket_folder()
    assert "t" * 100 in str(refused.value)
    assert tempfile.tempdir == str(tmp_path / ("t" * 100))


def limited(soft: int, hard: int, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a shell that allows so many open files."""
    command = f'ulimit -Sn {soft} && ulimit -Hn {hard} && exec "$@"'
    return subprocess.run(
        ["bash", "-c", command, "bash", *PROCTOR, *words],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def test_more_workers_than_open_files_are_refused_before_anything_starts(tmp_path: Path) -> None:
    words = ["eval", "--policy.type=random", "--env.type=fake", "--eval.n_episodes=200"]
    done = limited(256, 256, *words, "--eval.batch_size=120", f"--output_dir={tmp_path / 'run'}")
    assert done.returncode == 2
    assert done.stderr == (
        "proctor: error: 120 simulators take 424 open files and 256 are allowed here (ulimit -n); "
        "--eval.batch_size=64 fits\n"
    )
    assert not (tmp_path / "run").exists()


def test_a_soft_limit_of_open_files_is_raised_as_far_as_needed(tmp_path: Path) -> None:
    words = [word for word in QUICK_RUN if not word.startswith(("--eval.n_ep", "--eval.batch"))]
    words += ["--eval.n_episodes=8", "--eval.batch_size=8"]
    done = limited(40, 88, *words, f"--output_dir={tmp_path / 'run'}")
    assert done.returncode == 0, done.stderr
    assert sorted(set(outcomes(tmp_path / "run"))) in (["failure"], ["failure", "success"])
