"""A benchmark with a patched package is another benchmark, whatever its version."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from proctor.benchmarks.fake import Fake
from proctor.commands.evaluation.audit import run as audit
from proctor.commands.evaluation.compare import run as compare
from proctor.errors import UsageError
from proctor.evaluation.run import Evaluation
from proctor.runs.folder import RunFolder, RunRecord
from tests.refusals import refuses


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of the package that defines the fake benchmark's episodes."""
    file = tmp_path / "site" / "gym_toy" / "__init__.py"
    file.parent.mkdir(parents=True)
    file.write_text("THRESHOLD = 0.95\n")
    info = tmp_path / "site" / "gym_toy-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: gym-toy\nVersion: 1.0\n")
    (info / "RECORD").write_text("gym_toy/__init__.py,sha256=x,17\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setattr(Fake, "distributions", ("gym-toy",))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return file


def record_of(evaluation: Evaluation) -> RunRecord:
    record = RunFolder(evaluation.path).read()
    assert record is not None
    return record


def forget_packages(evaluation: Evaluation) -> None:
    """Make a run look like one of an earlier Proctor that did not hash packages."""
    record = record_of(evaluation)
    protocol = {name: value for name, value in record.protocol.items() if name != "packages"}
    RunFolder(evaluation.path).write(replace(record, protocol=protocol))


def test_a_run_is_not_resumed_with_a_patched_benchmark(
    run: Callable[..., Evaluation], package: Path
) -> None:
    first = run(eval__n_episodes=1)
    run(eval__n_episodes=2, resume=True, output_dir=str(first.path))
    package.write_text("THRESHOLD = 0.01\n")
    with pytest.raises(UsageError) as refused:
        run(eval__n_episodes=3, resume=True, output_dir=str(first.path))
    assert "gym_toy" in str(refused.value)


def test_a_comparison_and_an_audit_tell_of_a_patched_benchmark(
    run: Callable[..., Evaluation],
    package: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    a, same = run(), run()
    package.write_text("THRESHOLD = 0.01\n")
    b, page = run(), f"--html={tmp_path / 'c.html'}"
    assert record_of(a).fingerprint == record_of(same).fingerprint != record_of(b).fingerprint
    compare([str(a.path), str(same.path), page])
    assert "gym_toy" not in capsys.readouterr().err
    compare([str(a.path), str(b.path), page])
    assert "gym_toy" in capsys.readouterr().err
    with refuses(UsageError, "run.changed") as refused:
        audit([str(a.path), "--episodes=1"])
    assert "gym_toy" in str(refused.value)


def test_a_run_from_before_packages_were_hashed_is_resumed_compared_and_audited(
    run: Callable[..., Evaluation],
    package: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    first = run(eval__n_episodes=1)
    forget_packages(first)
    compare([str(first.path), str(run(eval__n_episodes=1).path), f"--html={tmp_path / 'c.html'}"])
    told = capsys.readouterr().err
    assert "protocols differ" not in told
    assert "did not hash the benchmark's packages" in told
    assert audit([str(first.path), "--episodes=1"]) == 0
    again = run(eval__n_episodes=2, resume=True, output_dir=str(first.path))
    assert record_of(again).protocol["packages"].keys() == {"gym_toy"}
