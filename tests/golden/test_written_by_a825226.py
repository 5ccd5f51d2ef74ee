"""Folders that commit a825226 wrote are still loaded, resumed, compared, trained on and edited.

`data/written_by_a825226/README.md` says what they are and how they were made. These tests use the
command line and the Python API only, because everything below them may be renamed.
"""

from __future__ import annotations

import json
import platform
import shutil
from pathlib import Path
from typing import Any

import pytest

from proctor.cli import main
from proctor.report.run.run import load_run

pytest.importorskip("pyarrow", reason="datasets need pyarrow: pip install 'proctor[dataset]'")
pytest.importorskip("av", reason="one dataset has videos: pip install 'proctor[dataset]'")

WRITTEN = Path(__file__).parent / "data" / "written_by_a825226"
WORLD = ["--env.type=fake", "--env.n_tasks=2", "--env.episode_length=14", "--video.episodes=0"]
FAMILIES = ["act", "act_words"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the folders; their relative paths are resolved from their parent folder."""
    copy = Path(shutil.copytree(WRITTEN, tmp_path / "written", symlinks=True))
    monkeypatch.chdir(copy)
    return copy


def proctors(*words: str) -> None:
    """Run a command that must succeed."""
    assert main(list(words)) == 0


def read(file: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(Path(file).read_text())
    return content


def record_again() -> str:
    """Record one demonstration with today's code; return the run folder."""
    what = ["--policy.type=expert", "--env.type=fake", "--record.n_episodes=1"]
    dataset = ["--dataset.repo_id=me/fresh", "--dataset.root=fresh", "--output_dir=fresh.recording"]
    proctors("record", *what, *dataset, "--record.images=false")
    return "fresh.recording"


def evaluate_again(policy: str, *, episodes: int) -> str:
    """Evaluate with today's code; return the run folder."""
    proctors("eval", policy, *WORLD, f"--eval.n_episodes={episodes}", "--output_dir=again")
    return "again"


def adopt_versions(run: str, fresh: str) -> None:
    """Write the library versions of a fresh run into an old one.

    Resuming is refused where numpy, Python or torch changed: here only Proctor itself changed.
    """
    old, new = read(f"{run}/run.json"), read(f"{fresh}/run.json")
    old["protocol"]["versions"] = new["protocol"]["versions"]
    if "numerics" in old["protocol"]["policy"]:
        old["protocol"]["policy"]["numerics"] = new["protocol"]["policy"]["numerics"]
    Path(run, "run.json").write_text(json.dumps(old))


def episodes_of(run: str) -> dict[Any, Any]:
    """What is the same in two runs with the same episodes; bits only on one processor family."""
    here = platform.machine() in read("finished/run.json")["machine"]["platform"]
    return {
        (row.task_id, row.episode_index): (row.outcome, row.steps, row.digest if here else None)
        for row in load_run(run).episodes
    }


@pytest.mark.parametrize(
    ("run", "episodes"), [("finished", 8), ("interrupted", 2), ("act.run", 4), ("act_words.run", 4)]
)
def test_a_run_is_loaded_and_reported(run: str, episodes: int) -> None:
    loaded = load_run(run)
    assert len(loaded.episodes) == episodes
    proctors("report", run)
    assert "point-1" in Path(run, "report.html").read_text()


def test_todays_code_plays_the_same_episodes() -> None:
    fresh = evaluate_again("--policy.type=expert", episodes=4)
    assert episodes_of(fresh) == episodes_of("finished")
    adopt_versions("finished", fresh)
    protocol = read("again/run.json")["protocol"]
    assert protocol.pop("packages") == {}  # hashes of the benchmark's packages came later
    assert protocol["eval"].pop("repeats") is None  # came later; None is equal to its absence
    assert protocol == read("finished/run.json")["protocol"]


def test_a_run_is_compared_with_a_copy_and_with_a_fresh_one() -> None:
    shutil.copytree("finished", "copy")
    for other in ("copy", evaluate_again("--policy.type=expert", episodes=4)):
        proctors("compare", "finished", other, "--json=compared.json", "--fail-if-worse=0")
        assert "point-1" in Path("compared.json").read_text()
        assert Path(other, "compare.html").is_file()


def test_an_interrupted_run_is_resumed_to_the_same_episodes() -> None:
    before = episodes_of("interrupted")
    adopt_versions("interrupted", evaluate_again("--policy.type=expert", episodes=1))
    proctors("eval", "--resume", "--output_dir=interrupted")
    after = episodes_of("interrupted")
    assert before.items() <= after.items()
    assert after == episodes_of("finished")
    assert len(read("interrupted/run.json")["sessions"]) == 2


def test_an_interrupted_recording_is_resumed_until_it_is_complete() -> None:
    adopt_versions("half.recording", record_again())
    proctors("record", "--resume", "--dataset.root=half", "--output_dir=half.recording")
    assert read("half/meta/info.json")["total_episodes"] == 6
    proctors("data", "check", "half")


def test_a_finished_recording_is_resumed_to_more_demonstrations() -> None:
    adopt_versions("numbers.recording", record_again())
    more = ["--output_dir=numbers.recording", "--record.n_episodes=3"]
    proctors("record", "--resume", "--dataset.root=numbers", *more)
    assert read("numbers/meta/info.json")["total_episodes"] == 6
    proctors("data", "check", "numbers")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_training_is_resumed_and_reported(family: str) -> None:
    training = f"{family}.training"
    proctors("train", "--resume", f"--output_dir={training}", "--steps=8")
    lines = map(json.loads, Path(training, "log.jsonl").read_text().splitlines())
    assert [line["step"] for line in lines if line["kind"] == "train"] == list(range(1, 9))
    state = f"{training}/checkpoints/last/training_state/training_step.json"
    assert read(state)["step"] == 8
    proctors("report", training)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_checkpoint_is_evaluated_and_its_run_resumed(family: str) -> None:
    path = f"--policy.path={family}.training/checkpoints/last/pretrained_model"
    fresh = evaluate_again(path, episodes=2)
    outcomes = [
        {row.episode_index: row.outcome for row in load_run(run).episodes}
        for run in (fresh, f"{family}.run")
    ]
    assert outcomes[0] == outcomes[1]
    adopt_versions(f"{family}.run", fresh)
    proctors("eval", "--resume", f"--output_dir={family}.run", "--eval.n_episodes=3")
    assert len(load_run(f"{family}.run").episodes) == 6


@pytest.mark.parametrize(("dataset", "frames"), [("numbers", 32), ("seen", 19)])
def test_a_dataset_is_read_and_edited(dataset: str, frames: int) -> None:
    proctors("data", "info", dataset)
    proctors("data", "check", dataset)
    assert read(f"{dataset}/meta/info.json")["total_frames"] == frames
    total = read(f"{dataset}/meta/info.json")["total_episodes"]
    proctors("data", "delete", dataset, "--episodes=0", "--in_place")
    proctors("data", "merge", dataset, dataset, "--output=merged")
    assert read("merged/meta/info.json")["total_episodes"] == 2 * (total - 1)
    proctors("data", "check", "merged")
