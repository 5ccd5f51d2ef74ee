"""Evaluations of the fake benchmark tell which of their starts trained the policy."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from proctor.config.builder import build
from proctor.config.evaluation import EvalConfig
from proctor.datasets.edit.build import build as build_dataset
from proctor.datasets.edit.destination import new_destination
from proctor.datasets.edit.edit_plan import EditPlan, open_source
from proctor.datasets.edit.operations import delete, merge, select, set_tasks
from proctor.datasets.format.episodes import START_COLUMN, read_episodes
from proctor.datasets.format.info import episode_files
from proctor.datasets.format.info_file import read_info
from proctor.datasets.writer import DatasetWriter
from proctor.errors import UsageError
from proctor.evaluation.preparing import prepare
from proctor.evaluation.run import Evaluation, run_evaluation
from proctor.report.claims.card import card_of
from proctor.report.run.page_data import page_data
from proctor.report.run.run import load_run
from proctor.runs.folder import EVAL_INFO_FILE
from proctor.trained_starts import TRAINED_STARTS_FILE, TrainedStarts
from tests.memoriser import starts_in, write_memory
from tests.recordings import record
from tests.run_folders import RECORD, eight_episodes, write_run

SEED = 1000


def recorded(root: Path, *, seed: int = SEED, n: int = 12, **flags: Any) -> Path:
    """Record demonstrations whose starts have the seeds from ``seed`` on."""
    kept = {"record__keep": "all", "env__n_tasks": 1, "eval__use_async_envs": False}
    record(root, seed=seed, record__n_episodes=n, **kept, **flags)
    return root


def evaluate(memory: Path, output: Path, **flags: Any) -> Evaluation:
    """Evaluate the memorising policy of ``memory`` on 20 starts from ``SEED`` on."""
    settings = {
        "policy.type": "tests.memoriser:PLUGIN",
        "policy.memory": str(memory),
        "env.type": "fake",
        "eval.n_episodes": 20,
        "eval.use_async_envs": False,
        "seed": SEED,
        "output_dir": str(output),
    }
    settings |= {name.replace("__", "."): value for name, value in flags.items()}
    return run_evaluation(prepare(build(EvalConfig, settings)), settings)


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return demonstrations of the first 12 starts that ``evaluate`` uses."""
    return recorded(tmp_path_factory.mktemp("demos") / "data")


@pytest.fixture
def memory(demos: Path, tmp_path: Path) -> Path:
    return write_memory(tmp_path / "memory", starts_in(demos))


def counted(trained: TrainedStarts, tmp_path: Path, **flags: Any) -> tuple[int, int]:
    """Return how many of the evaluated starts were in the training data, and of how many."""
    found = evaluate(write_memory(tmp_path / "memory", trained), tmp_path / "run", **flags)
    assert found.contamination is not None
    assert found.contamination.unknown is None
    return found.contamination.seen, found.contamination.starts


def test_a_memorising_policy_is_perfect_on_seen_starts_and_itself_on_others(
    memory: Path, tmp_path: Path
) -> None:
    found = evaluate(memory, tmp_path / "run", eval__n_episodes=52).contamination
    assert found is not None
    assert (found.seen, found.starts) == (12, 52)
    assert found.on_seen.rate == 1
    assert found.on_unseen.rate == 28 / 40  # its true rate
    assert found.text == (
        "12 of 52 starts were in the training data: 100.0% [75.8, 100.0] on those, "
        "70.0% [54.6, 81.9] on unseen ones"
    )
    assert found.nearest is not None
    assert sum(distance < 1e-6 for distance in found.nearest.distances.values()) == 12


def test_it_is_told_in_json_page_card_and_markdown(memory: Path, tmp_path: Path) -> None:
    said = evaluate(memory, tmp_path / "run").contamination
    assert said is not None
    run = load_run(tmp_path / "run")
    assert run.contamination is not None
    assert run.contamination.text == said.text
    info = json.loads((run.path / EVAL_INFO_FILE).read_text())["proctor"]["contamination"]
    assert info["text"] == said.text
    assert (info["seen"], info["starts"], info["on_seen"]["successes"]) == (12, 20, 12)
    page = page_data(run)["contamination"]
    assert page["text"] == said.text
    histogram = page["nearest"]["histogram"]
    assert (sum(histogram["seen"]), sum(histogram["unseen"])) == (12, 8)
    assert card_of(run).contamination == said.text
    assert said.text in run.to_markdown()
    assert said.text in (run.path / "report.html").read_text()


def test_a_policy_that_was_trained_on_other_starts_has_seen_none(tmp_path: Path) -> None:
    other = recorded(tmp_path / "data", seed=5000)
    assert counted(starts_in(other), tmp_path) == (0, 20)


EDITS: dict[str, tuple[Callable[[Path, Path], EditPlan], int]] = {
    "delete": (lambda demos, other: delete(open_source(demos), [0, 5]), 10),
    "select": (lambda demos, other: select(open_source(demos), [3, 4, 1]), 3),
    "set-task": (lambda demos, other: set_tasks(open_source(demos), {0: "another"}), 12),
    "merge": (lambda demos, other: merge([open_source(other), open_source(demos)]), 12),
}


@pytest.mark.parametrize("name", EDITS)
def test_edits_of_a_dataset_carry_the_starts_of_the_kept_episodes(
    name: str, demos: Path, tmp_path: Path
) -> None:
    other = recorded(tmp_path / "other", seed=5000, n=2)
    plan, seen = EDITS[name]
    build_dataset(plan(demos, other), new_destination(tmp_path / "edited"))
    assert counted(starts_in(tmp_path / "edited"), tmp_path) == (seen, 20)


def test_episodes_that_are_not_trained_on_do_not_count(demos: Path, tmp_path: Path) -> None:
    assert counted(starts_in(demos, [0, 1, 2]), tmp_path) == (3, 20)


def test_perturbed_episodes_belong_to_their_clean_start(memory: Path, tmp_path: Path) -> None:
    flags = {"perturb": "action_noise", "perturb_levels": [1], "eval__n_episodes": 14}
    found = evaluate(memory, tmp_path / "run", **flags)
    assert len(found.rows) == 28
    assert found.contamination is not None
    assert (found.contamination.seen, found.contamination.starts) == (12, 14)


def test_only_unseen_starts_are_planned_and_resuming_keeps_them(
    memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    flags = {"eval__unseen": True, "eval__n_episodes": 9}
    found = evaluate(memory, tmp_path / "run", **flags)
    assert [row.seed for row in found.rows] == list(range(SEED + 12, SEED + 21))
    assert [row.episode_index for row in found.rows] == list(range(9))
    assert found.contamination is not None
    assert found.contamination.text == "0 of 9 starts were in the training data"
    journal = tmp_path / "run" / "episodes.jsonl"
    journal.write_text("".join(journal.read_text().splitlines(keepends=True)[:4]))
    monkeypatch.setattr(
        "proctor.evaluation.starts.unseen._reset_all", None
    )  # cached: nothing is reset
    again = evaluate(memory, tmp_path / "run", resume=True, **flags)
    assert [row.seed for row in again.rows] == [row.seed for row in found.rows]
    assert [row.digest for row in again.rows] == [row.digest for row in found.rows]
    with pytest.raises(UsageError) as refused:
        evaluate(memory, tmp_path / "run", resume=True, eval__n_episodes=9)
    assert refused.value.code == "run.definition-changed"


def test_a_finite_list_without_enough_unseen_starts_is_refused(
    memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from proctor.benchmarks.fake import Fake
    from proctor.types import EpisodeSpec, Task

    def spec(self: Fake, task: Task, index: int, seed: int) -> EpisodeSpec:
        return EpisodeSpec(task, index, seed + index % 15, init_state=index % 15)

    monkeypatch.setattr(Fake, "spec", spec)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert len(evaluate(memory, tmp_path / "few", eval__unseen=True, eval__n_episodes=3).rows) == 3
    with pytest.raises(UsageError) as refused:
        evaluate(memory, tmp_path / "run", eval__unseen=True, eval__n_episodes=4)
    assert refused.value.code == "eval.too-few-unseen"


def test_unseen_starts_of_an_unknown_or_untrained_policy_are_refused(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    with pytest.raises(UsageError) as refused:
        evaluate(tmp_path / "memory", tmp_path / "run", eval__unseen=True)
    assert refused.value.code == "eval.unknown-starts"
    with pytest.raises(UsageError) as refused:
        evaluate(tmp_path, tmp_path / "run", policy__type="random", eval__unseen=True)
    assert refused.value.code in ("eval.untrained", "flag.unknown")


def unknown(memory: Path, tmp_path: Path) -> str:
    found = evaluate(memory, tmp_path / "run").contamination
    assert found is not None
    assert found.unknown is not None
    assert found.text.startswith("contamination unknown: ")
    assert "0 of" not in found.text
    assert found.to_json()["on_unseen"] is None
    return found.text


def test_a_checkpoint_of_others_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    assert "LeRobot" in unknown(tmp_path / "memory", tmp_path)


def test_damaged_starts_of_a_checkpoint_are_unknown(memory: Path, tmp_path: Path) -> None:
    file = memory / TRAINED_STARTS_FILE
    file.write_bytes(file.read_bytes()[:-9])
    assert "damaged" in unknown(memory, tmp_path)


def test_starts_of_another_benchmark_are_unknown(memory: Path, tmp_path: Path) -> None:
    file = memory / TRAINED_STARTS_FILE
    file.write_bytes(file.read_bytes().replace(b"\xa4fake", b"\xa4fork"))
    assert "fork" in unknown(memory, tmp_path)


def damage(root: Path, values: Sequence[Any]) -> None:
    for path in episode_files(root):
        table = pq.read_table(path)
        column = table.column_names.index(START_COLUMN)
        pq.write_table(table.set_column(column, START_COLUMN, [list(values)[: len(table)]]), path)


@pytest.mark.parametrize("values", [["{"] * 12, [1.5] * 12, [b"\xff"] * 12, [None] * 12], ids=repr)
def test_damaged_starts_of_a_dataset_are_unknown(
    values: Sequence[Any], demos: Path, tmp_path: Path
) -> None:
    shutil.copytree(demos, tmp_path / "data")
    damage(tmp_path / "data", values)
    trained = starts_in(tmp_path / "data")
    assert trained.unknown
    assert "12 of 12" in unknown(write_memory(tmp_path / "memory", trained), tmp_path)


def test_what_is_seen_is_said_although_other_starts_are_unknown(
    demos: Path, tmp_path: Path
) -> None:
    trained = starts_in(demos).merged(TrainedStarts(unknown=("the rest is lost",)))
    text = unknown(write_memory(tmp_path / "memory", trained), tmp_path)
    assert text.endswith("lost; at least 12 of 20 starts were in the training data: "
                         "100.0% [75.8, 100.0] on those")  # fmt: skip


def test_trials_on_a_robot_are_unknown_and_say_why(tmp_path: Path) -> None:
    protocol = {**RECORD.protocol, "trials": {"judge": "person"}}
    resolved = {**RECORD.resolved, "policy": {"type": "act", "path": "somewhere"}}
    record = replace(RECORD, protocol=protocol, resolved=resolved)
    found = load_run(write_run(tmp_path / "run", eight_episodes(), record)).contamination
    assert found is not None
    assert found.unknown is not None
    assert found.text.startswith("contamination unknown: trials on a robot")
    older = replace(RECORD, resolved=resolved)
    found = load_run(write_run(tmp_path / "older", eight_episodes(), older)).contamination
    assert found is not None
    assert "older Proctor" in found.text


def test_a_script_has_no_contamination(tmp_path: Path) -> None:
    settings = {"policy.type": "expert", "env.type": "fake", "eval.n_episodes": 1}
    settings |= {"eval.use_async_envs": False, "output_dir": str(tmp_path / "run")}
    assert run_evaluation(prepare(build(EvalConfig, settings)), settings).contamination is None


def test_recordings_of_corrections_and_rollouts_keep_starts(demos: Path, tmp_path: Path) -> None:
    labels = {"policy__type": "random", "record__label": "expert"}
    corrected = recorded(tmp_path / "corrected", n=3, **labels)
    assert starts_in(corrected) == starts_in(demos, [0, 1, 2])
    memory = write_memory(tmp_path / "memory", TrainedStarts())
    evaluate(memory, tmp_path / "run", record=str(tmp_path / "rollouts"), record_images=False)
    assert len(starts_in(tmp_path / "rollouts")) == 20


def test_a_dataset_without_starts_stays_without_them(demos: Path, tmp_path: Path) -> None:
    shutil.copytree(demos, tmp_path / "old")
    for path in episode_files(tmp_path / "old"):
        table = pq.read_table(path)
        pq.write_table(table.drop_columns([START_COLUMN]), path)
    root = tmp_path / "old"
    with DatasetWriter.resume(root) as writer:
        frame = {key: _zeros(entry) for key, entry in writer.info.features.items() if "." in key}
        writer.add_frame(frame | {"action": _zeros(writer.info.features["action"])}, "task")
        writer.end_episode()
    assert read_episodes(root, read_info(root)).starts is None
    assert all(START_COLUMN not in pq.read_schema(path).names for path in episode_files(root))


def _zeros(entry: dict[str, Any]) -> Any:
    import numpy as np

    return np.zeros(entry["shape"], entry["dtype"])
