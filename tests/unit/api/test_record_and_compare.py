"""``proctor.record``, ``proctor.compare``, ``proctor.load_dataset`` and short representations."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow", reason="datasets need pyarrow: pip install 'proctor[dataset]'")

import proctor
from proctor.errors import UsageError
from proctor.evaluation.recording import RecordingResult
from proctor.report.compare.comparison import Comparison
from proctor.report.run.results import Results
from proctor.report.training.run import Training
from tests.recordings import columns, same
from tests.refusals import refuses
from tests.training_folders import write_training

HERE = {"use_async_envs": False}
FAKE = {"type": "fake", "episode_length": 14}


def record(root: Path, **settings: Any) -> RecordingResult:
    how: dict[str, Any] = {"policy": "expert", "env": FAKE, "n_episodes": 2} | settings
    return proctor.record(dataset=root, record={"images": False}, eval=HERE, **how)


def play(folder: Path, policy: str, **settings: Any) -> Results:
    how: dict[str, Any] = {"n_episodes": 4, "video": {"episodes": 0}} | settings
    return proctor.evaluate(policy, FAKE, eval=HERE, output_dir=folder, **how)


def test_a_recording_has_its_folder_and_the_counts_of_every_task(tmp_path: Path) -> None:
    recorded = record(tmp_path / "demos", env=FAKE | {"n_tasks": np.int64(2)})
    assert recorded.path == tmp_path / "demos"
    assert [(task.name, task.kept) for task in recorded.tasks] == [("point-0", 2), ("point-1", 2)]
    assert recorded.complete
    assert repr(recorded).startswith("RecordingResult(4 of 4 demonstrations")


def test_a_recording_is_quiet(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    record(tmp_path / "demos")
    assert capfd.readouterr() == ("", "")


def test_a_second_recording_to_the_same_folder_is_refused_and_resumed(tmp_path: Path) -> None:
    record(tmp_path / "demos", n_episodes=1)
    with refuses(UsageError, "dataset.exists"):
        record(tmp_path / "demos")
    recorded = proctor.record(dataset=tmp_path / "demos", n_episodes=3, resume=True)
    assert [task.kept for task in recorded.tasks] == [3]
    again = proctor.record(dataset={"root": str(tmp_path / "demos")}, resume=True)
    assert [task.kept for task in again.tasks] == [3]


def test_a_recording_in_two_calls_has_the_bits_of_one(tmp_path: Path) -> None:
    record(tmp_path / "one", n_episodes=3)
    record(tmp_path / "two", n_episodes=1)
    proctor.record(dataset=tmp_path / "two", n_episodes=3, resume=True)
    assert same(columns(tmp_path / "one"), columns(tmp_path / "two"))


def test_a_function_is_recorded(tmp_path: Path) -> None:
    def still(observation: dict[str, Any]) -> list[float]:
        return [0.0, 0.0]

    recorded = proctor.record(
        still, FAKE, tmp_path / "demos", n_episodes=1, record={"keep": "all", "images": False}
    )
    assert recorded.tasks[0].kept == 1


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: proctor.record("zero", "fake", "x", n_episode=1), "'n_episodes'"),
        (lambda: proctor.record("zero", "fake", "x", recod={}), "'record'"),
        (lambda: proctor.compare("a", "b", alfa=0.1), "'alpha'"),
        (lambda: proctor.load_dataset("x", episode=[1]), "'episodes'"),
    ],
)
def test_an_unknown_argument_is_refused_with_the_nearest(call: Any, named: str) -> None:
    with refuses(UsageError, "flag.unknown") as refused:
        call()
    assert named in str(refused.value)


def test_a_dataset_to_record_is_a_folder_or_settings() -> None:
    with refuses(UsageError, "flag.invalid-value"):
        proctor.record("zero", "fake", 3)  # type: ignore[arg-type]


def test_runs_are_compared_by_folder_and_by_result(tmp_path: Path) -> None:
    a, b, c = (play(tmp_path / n, p) for n, p in (("a", "zero"), ("b", "expert"), ("c", "random")))
    one = proctor.compare(a, tmp_path / "b", alpha=np.float64(0.1))
    assert isinstance(one, Comparison)
    assert one.difference == b.tally.rate
    assert one.interval is not None
    assert one.p_value == one.overall.p_holm
    assert not one.is_worse
    assert one.criteria.alpha == 0.1
    assert repr(one).startswith("Comparison(B - A +")
    loaded = proctor.load_run(tmp_path / "c")
    assert isinstance(loaded, Results)
    with pytest.warns(proctor.ProctorWarning) as issued:  # they are no independent samples
        several = proctor.compare(str(tmp_path / "a"), b, loaded, paired=False)
    assert issued[0].filename == __file__
    assert isinstance(several, list)
    assert [other.b for other in several] == [b.path, c.path]


@pytest.mark.parametrize(
    ("settings", "code"),
    [({"alpha": 0.9}, "flag.out-of-range"), ({"fail_if_worse": -1.0}, "flag.out-of-range")],
)
def test_levels_out_of_range_are_refused(settings: dict[str, float], code: str) -> None:
    with refuses(UsageError, code):
        proctor.compare("a", "b", **settings)


def test_what_is_no_run_is_not_compared(tmp_path: Path) -> None:
    (tmp_path / "card.json").write_text("{}")
    with refuses(UsageError, "argument.order"):
        proctor.compare(tmp_path / "card.json", tmp_path)
    with refuses(UsageError, "flag.invalid-value"):
        proctor.compare(3, tmp_path)  # type: ignore[arg-type]
    with refuses(UsageError, "run.not-found"):
        proctor.compare(tmp_path / "a", tmp_path / "b")


def test_a_dataset_is_loaded_and_described(tmp_path: Path) -> None:
    record(tmp_path / "demos", n_episodes=3)
    whole = proctor.load_dataset(tmp_path / "demos")
    some = proctor.load_dataset("me/demos", root=tmp_path / "demos", episodes=np.arange(1, 3))
    assert some.chosen.tolist() == [1, 2]
    assert repr(whole).startswith(f"Dataset({tmp_path / 'demos'}: 3 episodes, {len(whole)} frames")
    assert "10 fps, features: observation.state, action" in repr(whole)
    with refuses(UsageError, "flag.invalid-value"):
        proctor.load_dataset(tmp_path / "demos", cache="rom")
    with refuses(UsageError, "flag.invalid-value"):
        proctor.load_dataset(tmp_path / "demos", image_size=(3,))


def test_representations_are_one_short_line(tmp_path: Path) -> None:
    played = play(tmp_path / "run", "zero")
    for result in (played, proctor.load_run(tmp_path / "run")):
        assert repr(result) == (
            f"{type(result).__name__}(0.0% [0.0, 49.0] n=4, path={str(tmp_path / 'run')!r})"
        )


def test_a_training_folder_is_loaded(tmp_path: Path) -> None:
    folder = write_training(tmp_path / "training")
    training = proctor.load_run(str(folder))
    assert isinstance(training, Training)
    assert (training.path, training.step, training.planned) == (folder, 400, 400)
    assert training.complete
    assert list(training.losses)[:2] == [10, 20]
    assert training.validation_losses == {100: 3.0, 200: 1.5, 400: 0.75}
    assert [row.step for row in training.evaluations] == [200, 300, 400]
    checkpoints = folder / "checkpoints"
    assert training.checkpoints == {200: checkpoints / "000200", 400: checkpoints / "000400"}
    assert training.best_checkpoint == checkpoints / "000200"
    assert training.policy == checkpoints / "000400" / "pretrained_model"
    assert training.best_policy == checkpoints / "000200" / "pretrained_model"
    assert repr(training) == (f"Training({training}, path={str(folder)!r})")
    assert str(training).startswith("step 400/400, loss 0.")


@pytest.mark.parametrize(
    "name", ["evaluate", "record", "train", "compare", "load_dataset", "load_run"]
)
def test_every_function_documents_its_arguments(name: str) -> None:
    function = getattr(proctor, name)
    text = inspect.getdoc(function) or ""
    for argument in inspect.signature(function).parameters:
        assert f"{argument}: " in text


def test_functions_need_no_extra_before_they_are_called() -> None:
    code = (
        "import sys\n"
        "for extra in ('torch', 'pyarrow', 'av', 'pandas', 'huggingface_hub'):\n"
        "    sys.modules[extra] = None\n"
        "from proctor import compare, evaluate, load_dataset, load_run, record, train\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
