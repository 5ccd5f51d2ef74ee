"""The command line as a user meets it: real processes, signals, exit codes, what is printed."""

from __future__ import annotations

import json
import os
import pty
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from proctor.cli import main
from proctor.runs.journal import read_journal

PROCTOR = [sys.executable, "-m", "proctor.cli"]
SLOW_RUN = [
    "eval", "--policy.type=random", "--env.type=fake", "--env.endless=true", "--env.step_ms=2",
    "--env.n_tasks=2", "--eval.n_episodes=20", "--eval.batch_size=2",
]  # fmt: skip
LONG_RUN = [word.replace("step_ms=2", "step_ms=10") for word in SLOW_RUN]
"""For tests that interrupt it: it takes 10 s, and still goes on after a pause of the machine."""


def proctor(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROCTOR, *words], capture_output=True, text=True, timeout=60, cwd=cwd, check=False
    )


def start(folder: Path, *words: str, run: Sequence[str] = LONG_RUN) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*PROCTOR, *run, f"--output_dir={folder}", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_episodes(folder: Path, n: int) -> None:
    deadline = time.monotonic() + 60
    while len(read_journal(folder).rows) < n:
        assert time.monotonic() < deadline, "no episodes appeared"
        time.sleep(0.02)


def results(folder: Path) -> dict[object, object]:
    return {row.key: row.digest for row in read_journal(folder).rows}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[object, object]:
    folder = tmp_path_factory.mktemp("cli") / "run"
    assert proctor(*SLOW_RUN, "--env.step_ms=0", f"--output_dir={folder}").returncode == 2
    words = [word for word in SLOW_RUN if "step_ms" not in word]
    done = proctor(*words, f"--output_dir={folder}")
    assert done.returncode == 0, done.stderr
    return results(folder)


def test_a_run_ends_with_a_table_a_rate_with_its_interval_and_the_folder(tmp_path: Path) -> None:
    done = proctor(
        "eval", "--policy.type", "expert", "--env.type", "fake", "--env.n_tasks=2",
        "--eval.n_episodes", "5", f"--output_dir={tmp_path / 'run'}",
    )  # fmt: skip
    assert done.returncode == 0
    assert "point  point-1  100.0% [56.6, 100.0] n=5" in done.stdout
    assert "success 100.0% [72.2, 100.0] n=10" in done.stdout
    assert done.stdout.splitlines()[-2:] == [
        f"results: {tmp_path / 'run'}",
        f"report: {tmp_path / 'run' / 'report.html'}",
    ]
    assert "10/10  success 100.0% [72.2, 100.0] n=10  done in 0:0" in done.stderr


def test_the_output_folder_has_a_default_that_tells_what_it_is(tmp_path: Path) -> None:
    done = proctor(
        "eval", "--policy.type=zero", "--env.type=fake", "--eval.n_episodes=1", cwd=tmp_path
    )
    assert done.returncode == 0
    (folder,) = tmp_path.glob("outputs/eval/*/*_fake_zero")
    assert len(read_journal(folder).rows) == 1


def test_errored_episodes_give_exit_code_1_and_stand_beside_the_rate(tmp_path: Path) -> None:
    done = proctor(
        "eval", "--policy.type=expert", "--env.type=fake", "--eval.n_episodes=3",
        '--env.faults={"0/1/2": "memory"}', f"--output_dir={tmp_path / 'run'}",
    )  # fmt: skip
    assert done.returncode == 1
    assert (
        "success 100.0% [34.2, 100.0] n=2, 1 error (66.7% to 100.0% if it had counted)\n"
        in done.stdout
    )
    assert "error: point-0 episode 1 (seed 1001): MemoryError" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["eval"], "--env.type is missing (choose from: "),
        (["eval", "--env.type=fake"], "--policy.type is missing (choose from: "),
        (["eval", "stray"], "unexpected word 'stray' (flags are written --name=value)"),
        (["eval", "--resume"], "--resume needs --output_dir=FOLDER, the run to complete"),
        (["eval", "--resume", "--output_dir=none"], "--resume: none holds no run to resume"),
        (["audit", "none"], "none is not a run folder (it has no run.json)"),
        (
            ["audit", "a", "--episodes=0"],
            "--episodes must be at least 1, got 0",
        ),
        (["info", "x"], "proctor info takes no arguments, got 1"),
        (
            ["eval", "--policy.type=random", "--env.type=fake", "--policy.inputs=observation.imag"],
            "--policy.inputs: fake offers no 'observation.imag'; did you mean 'observation.image'?",
        ),
        (
            ["eval", "--policy.type=zero", "--env.type=metaworld", "--env.task=reech-v3"],
            "metaworld has no task 'reech-v3'; did you mean 'reach-v3'?",
        ),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2_with_nothing_started(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"proctor: error: {message}")
    assert said.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_bad_usage_is_the_exit_code_of_the_process(tmp_path: Path) -> None:
    done = proctor("evl", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("proctor: error: unknown command 'evl'; did you mean 'eval'?")
    assert done.stderr.count("\n") == 1


@pytest.mark.alone
def test_help_is_quick() -> None:
    assert min(_seconds_of_help() for _ in range(5)) < 0.4  # other programs delay some tries


def _seconds_of_help() -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = proctor("--help")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert "proctor eval" in done.stdout
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.alone
def test_ctrl_c_stops_within_a_second_and_says_how_to_go_on(
    tmp_path: Path, undisturbed: dict[object, object]
) -> None:
    for attempt in range(5):  # other programs delay some tries, not all
        began = time.monotonic()
        proctor("--help")
        limit_s = max(1.0, 4 * (time.monotonic() - began))  # a busy machine is slow in everything
        folder = tmp_path / f"run{attempt}"
        process = start(folder)
        wait_for_episodes(folder, 3)
        process.send_signal(signal.SIGINT)
        sent = time.monotonic()
        stdout, stderr = process.communicate(timeout=60)
        took_s = time.monotonic() - sent
        if took_s < limit_s:
            break
    assert took_s < limit_s
    assert process.returncode == 130
    assert f"proctor eval --resume --output_dir={folder}" in stderr
    assert stdout.splitlines()[-1:] == [f"report: {folder / 'report.html'}"]
    assert (folder / "report.html").exists()
    assert "Traceback" not in stderr
    assert (folder / "eval_info.json").exists()
    kept = results(folder)
    assert 3 <= len(kept) < 40
    done = proctor("eval", "--resume", f"--output_dir={folder}", "--env.step_ms=0")
    assert done.returncode == 0, done.stderr
    assert results(folder) == undisturbed


def test_a_ctrl_c_that_other_code_swallows_is_not_lost(tmp_path: Path) -> None:
    program = (
        "import sys, time\n"
        "from proctor.benchmarks.fake import FakeSim\n"
        "from proctor.cli import main\n"
        "step, calls = FakeSim.step, iter(range(10**6))\n"
        "def swallowing(self, action):\n"
        "    try:\n"
        "        if next(calls) == 7:  # in the second episode\n"
        "            open(sys.argv[-1] + '.waiting', 'w').close()\n"
        "            time.sleep(60)\n"
        "    except BaseException:\n"
        "        open(sys.argv[-1], 'w').close()\n"
        "    return step(self, action)\n"
        "FakeSim.step = swallowing\n"
        "sys.exit(main(sys.argv[1:-1]))\n"
    )
    folder, mark = tmp_path / "run", tmp_path / "swallowed"
    slow = [word for word in SLOW_RUN if "step_ms" not in word and "batch_size" not in word]
    how = ["--env.step_ms=20", "--env.episode_length=5", "--eval.use_async_envs=false"]
    words = [*slow, *how, f"--output_dir={folder}", str(mark)]
    process = subprocess.Popen(
        [sys.executable, "-c", program, *words], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 60
    while not mark.with_name("swallowed.waiting").exists():
        assert time.monotonic() < deadline, "no step came"
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert mark.exists()


def test_a_killed_parent_leaves_no_process_and_no_episode_behind(
    tmp_path: Path, undisturbed: dict[object, object]
) -> None:
    folder = tmp_path / "run"
    process = start(folder)
    wait_for_episodes(folder, 3)
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) >= 3, "fork server and two workers"
    process.kill()
    process.communicate()
    assert psutil.wait_procs(family, timeout=60)[1] == []
    done = proctor("eval", "--resume", f"--output_dir={folder}", "--env.step_ms=0")
    assert done.returncode == 0, done.stderr
    assert results(folder) == undisturbed


def test_a_killed_parent_takes_a_worker_that_hangs_with_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start(folder, '--env.faults={"0/3/5": "hang"}')
    wait_for_episodes(folder, 3)
    time.sleep(0.5)
    family = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate()
    assert psutil.wait_procs(family, timeout=60)[1] == []


def test_a_killed_worker_costs_only_its_episodes_time(
    tmp_path: Path, undisturbed: dict[object, object]
) -> None:
    folder = tmp_path / "run"
    process = start(folder, run=[word.replace("step_ms=10", "step_ms=5") for word in LONG_RUN])
    wait_for_episodes(folder, 2)
    server = psutil.Process(process.pid).children()
    workers = [child for parent in server for child in parent.children()]
    assert workers
    workers[0].kill()
    process.communicate(timeout=120)
    assert process.returncode == 0
    assert results(folder) == undisturbed
    assert sum(row.attempts == 2 for row in read_journal(folder).rows) == 1


def test_a_second_run_in_the_same_folder_is_refused_while_the_first_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start(folder)
    wait_for_episodes(folder, 1)
    done = proctor("eval", "--resume", f"--output_dir={folder}")
    process.kill()
    process.communicate()
    assert done.returncode == 2
    assert "is in use by another process" in done.stderr


INTERRUPTED_WHILE = """
import os, signal, sys
awaited = sys.argv.pop(1)

class Interrupting:
    def find_spec(self, name, *_):
        if name == awaited:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
from proctor.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("imported", "code"), [("proctor.cli", -signal.SIGINT), ("proctor.commands.list", 130)]
)
def test_ctrl_c_while_a_command_is_loaded_prints_no_traceback(imported: str, code: int) -> None:
    command = [sys.executable, "-c", INTERRUPTED_WHILE, imported]
    ended = subprocess.run(
        [*command, "list", "policies"], capture_output=True, text=True, check=False
    )
    assert ended.returncode == code
    assert "Traceback" not in ended.stderr


def test_sigterm_is_an_interruption_too(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start(folder)
    wait_for_episodes(folder, 1)
    process.terminate()
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "--resume" in stderr


def test_on_a_terminal_there_is_one_live_line(tmp_path: Path) -> None:
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [*PROCTOR, *SLOW_RUN, "--eval.scheduler=continuous", f"--output_dir={tmp_path / 'run'}"],
        stdout=child,
        stderr=child,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
    )
    os.close(child)
    screen = b""
    while True:
        try:
            screen += os.read(parent, 4096)
        except OSError:
            break
    process.wait()
    os.close(parent)
    text = screen.decode()
    assert "steps/s" in text
    assert "left" in text
    assert text.count("done in") >= 1
    assert text.count("results:") == 1


def test_an_audit_of_a_sound_run_finds_no_difference(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = ["--policy.type=random", "--env.type=fake", "--env.n_tasks=2", "--eval.n_episodes=5"]
    done = proctor("audit", *words, "--eval.batch_size=2", f"--output_dir={folder}", "--episodes=6")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "6 episodes run again, 0 different"


def test_an_audit_names_what_differs(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = ["--policy.type=zero", "--env.type=fake", "--eval.n_episodes=2"]
    words.append("--eval.batch_size=1")  # the first line is of the first episode
    proctor("eval", *words, f"--output_dir={folder}")
    journal = folder / "episodes.jsonl"
    journal.write_text(journal.read_text().replace('"steps":50', '"steps":49', 1))
    done = proctor("audit", str(folder))
    assert done.returncode == 1
    assert "point-0 episode 0: differs: steps 49 -> 50" in done.stdout
    assert "2 episodes run again, 1 different" in done.stdout


def test_older_digests_are_not_compared_by_an_audit_nor_mixed_by_a_resume(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = ["--policy.type=zero", "--env.type=fake", "--eval.n_episodes=2"]
    proctor("eval", *words, f"--output_dir={folder}")
    record = json.loads((folder / "run.json").read_text())
    assert record["protocol"].pop("digest") == 2
    (folder / "run.json").write_text(json.dumps(record))
    journal = folder / "episodes.jsonl"
    journal.write_text(re.sub(r'"digest":"\w+"', '"digest":"older"', journal.read_text()))
    done = proctor("audit", str(folder))
    assert (done.returncode, done.stdout.splitlines()[-1]) == (
        0,
        "2 episodes run again, 0 different",
    )
    assert "digests are not compared" in done.stdout
    done = proctor("eval", "--resume", "--eval.n_episodes=3", f"--output_dir={folder}")
    assert done.returncode == 2
    assert "digest was not set, now 2" in done.stderr
    assert len(read_journal(folder).rows) == 2


def test_info_tells_what_is_here() -> None:
    done = proctor("info")
    assert done.returncode == 0
    for word in ("proctor", "cores", "graphics", "devices", "extra", "numpy"):
        assert any(line.startswith(word) for line in done.stdout.splitlines()), word


def test_version_is_printed() -> None:
    assert proctor("--version").stdout.startswith("proctor ")
