"""A training is resumed with its dataset, wherever that is now, or with one that a flag names."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.refusals import refuses

from .builders import FEATURES, RUN, SMALL_ACT, files_of, words, write_numbers

pytest.importorskip("torch")

from proctor.cli import main
from proctor.commands.training.train import settings_from
from proctor.config.builder import build
from proctor.config.lerobot.training import drop_lerobot_settings
from proctor.config.training import TrainConfig
from proctor.datasets.edit.build import edit
from proctor.datasets.edit.destination import in_place_destination
from proctor.datasets.edit.operations import delete, set_tasks
from proctor.datasets.format.tables import read_stats, write_stats
from proctor.datasets.reader import open_handle
from proctor.datasets.reading.identity import DatasetIdentity, identity_of
from proctor.datasets.writer import DatasetWriter
from proctor.errors import UsageError
from proctor.number_text import number_ranges
from proctor.runs.training import episodes_in
from proctor.training.checkpoints.card import PolicyCard, render_card
from proctor.training.checkpoints.trained_episodes import TRAINED_EPISODES, read_trained_episodes
from proctor.training.setup import prepare

from .test_train import Killed, kill_at

LENGTHS = (9, 7, 8)
VALIDATION = "training.validation-changed"


@pytest.fixture(scope="module")
def begun(tmp_path_factory) -> tuple[Path, Path]:
    """Return a dataset and a training of two steps on it."""
    folder = tmp_path_factory.mktemp("begun")
    data = write_numbers(folder / "data", LENGTHS)
    assert main(["train", *words(data, folder / "run", SMALL_ACT, RUN, {"steps": 2})]) == 0
    return data, folder / "run"


@pytest.fixture
def copies(begun, tmp_path) -> tuple[Path, Path]:
    """Return copies of both, side by side as before."""
    data, run = tmp_path / "data", tmp_path / "run"
    shutil.copytree(begun[0], data)
    shutil.copytree(begun[1], run, symlinks=True)
    return data, run


def resume(data: Path, run: Path, *more: str, steps: int = 4) -> int:
    flags = ["--resume", f"--output_dir={run}", f"--dataset.root={data}", f"--steps={steps}", *more]
    return main(["train", *flags])


def record_of_an_older_version(run: Path) -> dict[str, Any]:
    """Return train.json; older versions kept it in the folder only."""
    for kept in (*run.glob("*/0*/*/train.json"), *run.glob(f"*/0*/*/{TRAINED_EPISODES}")):
        kept.unlink()
    record: dict[str, Any] = json.loads((run / "train.json").read_text())
    return record


def refused(capsys) -> str:
    said: str = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


def append(root: Path, episodes: int = 1) -> None:
    with DatasetWriter.resume(root) as writer:
        for _ in range(episodes):
            for _ in range(5):
                frame = {k: np.zeros(e["shape"], np.float32) for k, e in FEATURES.items()}
                writer.add_frame(frame, "task 0")
            writer.end_episode()


def test_a_dataset_that_was_moved_is_the_same(copies, tmp_path, capsys):
    data, run = copies
    assert resume(data.rename(tmp_path / "elsewhere"), run) == 0
    assert "note" not in capsys.readouterr().err
    (used,) = json.loads((run / "train.json").read_text())["datasets"]
    assert used["root"]["absolute"] == str(tmp_path / "elsewhere")
    append(tmp_path / "elsewhere")
    assert resume(tmp_path / "elsewhere", run, steps=6) == 2  # changed in its new place


def test_another_dataset_is_used_from_the_resumed_step_on(numbers, tmp_path, monkeypatch, capsys):
    more = write_numbers(tmp_path / "more", (9, 7, 8, 12))
    kept = {"ema.enable": "true", "optimizer.grad_skip_factor": 10}
    asked = words(numbers, tmp_path / "whole", SMALL_ACT, RUN, kept, {"steps": 4})
    assert main(["train", *asked]) == 0
    shutil.copytree(tmp_path / "whole", tmp_path / "killed", symlinks=True)
    change = [f"--dataset.root={more}", "--steps=10"]
    assert main(["train", "--resume", f"--output_dir={tmp_path / 'whole'}", *change]) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note: ")]
    assert len(said) == 1
    assert "from step 4 on" in said[0]
    for step in (5, 8):  # before the first checkpoint with the new dataset, and after it
        with monkeypatch.context() as patch:
            kill_at(patch, step)
            with pytest.raises(Killed):
                main(["train", "--resume", f"--output_dir={tmp_path / 'killed'}", *change])
        change = []
    assert main(["train", "--resume", f"--output_dir={tmp_path / 'killed'}"]) == 0
    whole, killed = (tmp_path / name / "checkpoints/000010" for name in ("whole", "killed"))
    assert files_of(killed) == files_of(whole)
    assert "training_state/gradient_guard.json" in files_of(whole)
    statistics = "policy_preprocessor_step_3_normalizer_processor.safetensors"
    before = files_of(tmp_path / "whole/checkpoints/000004/pretrained_model")
    assert before[statistics] == files_of(whole / "pretrained_model")[statistics]
    record = json.loads((tmp_path / "killed/train.json").read_text())
    assert [used["first_step"] for used in record["datasets"]] == [0, 4]
    assert [used["identity"]["frames"] for used in record["datasets"]] == [24, 36]
    policy = killed / "pretrained_model"
    card = render_card(PolicyCard(tmp_path / "killed", policy, "me/it"), [], None)
    assert "from step 4 on `someone/numbers` (4 episodes, 36 frames)." in card


def test_other_episodes_are_used_from_the_resumed_step_on(copies, capsys):
    data, run = copies
    assert resume(data, run, "--dataset.episodes=[1,2]", "--optimizer.lr=0.5") == 0
    said = capsys.readouterr().err
    assert "from step 2 on, this training uses episodes 1-2 instead of 0-2" in said
    assert "--optimizer.lr was not set, now 0.5" in said
    record = json.loads((run / "train.json").read_text())
    assert [used["episodes"] for used in record["datasets"]] == ["0-2", "1-2"]
    assert [change["step"] for change in record["changes"]] == [2]
    policy = run / "checkpoints/000004/pretrained_model"
    card = render_card(PolicyCard(run, policy, "me/it"), [], None)
    assert "episodes 1-2" in card
    assert "From step 2 on: `--optimizer.lr was not set, now 0.5`" in card
    first = run / "checkpoints/000002/pretrained_model"
    assert "From step" not in render_card(PolicyCard(run, first, "me/it"), [], None)


def test_validation_leaves_out_episodes_that_earlier_steps_trained_on(numbers, tmp_path, capsys):
    run = tmp_path / "run"
    chosen = {"steps": 2, "dataset.episodes": "[0,1]"}
    assert main(["train", *words(numbers, run, SMALL_ACT, RUN, chosen)]) == 0
    split = ("--dataset.eval_split=0.5", "--dataset.episodes=[0,1,2]")
    assert resume(numbers, run, *split) == 0
    capsys.readouterr()
    assert resume(numbers, run, "--eval_steps=2", steps=6) == 0
    said = capsys.readouterr().err
    assert (
        "validation leaves out episodes 1, which were trained on before step 2; 1 are left" in said
    )
    assert "step 6: validation loss" in said


def test_validation_on_nothing_but_trained_episodes_is_refused(copies, capsys):
    data, run = copies
    assert resume(data, run, "--dataset.eval_split=0.5") == 0
    before = (run / "train.json").read_bytes()
    capsys.readouterr()
    assert resume(data, run, "--eval_steps=2", steps=6) == 2
    assert "all validation episodes (1-2) were trained on before step 2" in refused(capsys)
    assert (run / "train.json").read_bytes() == before


def test_validation_says_if_an_older_record_hides_the_trained_episodes(copies, capsys):
    data, run = copies
    record = record_of_an_older_version(run)
    del record["datasets"][0]["episodes"]
    (run / "train.json").write_text(json.dumps(record))
    assert resume(data, run, "--dataset.eval_split=0.5") == 0
    capsys.readouterr()
    assert resume(data, run, "--eval_steps=2", steps=6) == 0
    assert "may be on episodes that were trained on" in capsys.readouterr().err


def test_validation_leaves_out_what_trained_the_policy_to_begin_with(numbers, tmp_path, capsys):
    """The checkpoint was copied, so only its own files can tell."""
    base = tmp_path / "base"
    chosen = {"steps": 2, "dataset.episodes": "[0,1]"}
    assert main(["train", *words(numbers, base, SMALL_ACT, RUN, chosen)]) == 0
    policy = shutil.copytree(base / "checkpoints/000002/pretrained_model", tmp_path / "policy")
    shutil.rmtree(base)
    split = {"dataset.eval_split": "0.5", "eval_steps": 2}
    begin = {"policy.path": str(policy), "policy.device": "cpu", "steps": 2} | split
    capsys.readouterr()
    assert main(["train", *words(numbers, tmp_path / "run", RUN, begin)]) == 0
    said = capsys.readouterr().err
    assert "validation leaves out episodes 1, which were trained on before step 0; 1 are" in said
    assert resume(numbers, tmp_path / "run") == 0  # the policy is known as the checkpoint's base
    assert "validation leaves out episodes 1," in capsys.readouterr().err
    (policy / TRAINED_EPISODES).unlink()
    assert main(["train", *words(numbers, tmp_path / "unknown", RUN, begin)]) == 0
    assert "may be on episodes that it was trained on" in capsys.readouterr().err
    (policy / TRAINED_EPISODES).write_text("{")
    with refuses(UsageError, "checkpoint.unreadable"):
        read_trained_episodes(policy)


def test_validation_knows_the_episodes_of_a_dataset_that_has_grown(numbers, tmp_path, capsys):
    run, larger = tmp_path / "run", shutil.copytree(numbers, tmp_path / "larger")
    append(larger)
    chosen = {"steps": 2, "dataset.episodes": "[0,1]"}
    assert main(["train", *words(numbers, run, SMALL_ACT, RUN, chosen)]) == 0
    split = ("--dataset.eval_split=0.5", "--dataset.episodes=[0,1,2,3]")
    assert resume(larger, run, *split) == 0
    capsys.readouterr()
    assert resume(larger, run, "--eval_steps=2", steps=6) == 0
    assert "validation leaves out episodes 1, which" in capsys.readouterr().err


def test_a_named_checkpoint_is_continued_with_its_own_settings(copies, capsys):
    data, run = copies
    assert resume(data, run, "--dataset.episodes=[1,2]", "--batch_size=3") == 0
    config = run / "checkpoints/000002/pretrained_model/train_config.json"
    capsys.readouterr()
    assert main(["train", "--resume", f"--config_path={config}", "--steps=4"]) == 0
    said = capsys.readouterr().err
    record = json.loads((run / "train.json").read_text())
    assert [used["episodes"] for used in record["datasets"]] == ["0-2"]
    assert record["resolved"]["batch_size"] == 4
    assert record["changes"] == []
    assert "changed from here on" not in said
    assert "another order" not in said
    assert "no record of its settings" not in said
    assert len(record["sessions"]) == 3


def test_a_named_checkpoint_without_a_record_takes_the_last_sessions_settings(copies, capsys):
    data, run = copies
    assert resume(data, run, "--dataset.episodes=[1,2]", "--batch_size=3") == 0
    record_of_an_older_version(run)
    config = run / "checkpoints/000002/pretrained_model/train_config.json"
    capsys.readouterr()
    assert main(["train", "--resume", f"--config_path={config}", "--steps=4"]) == 0
    assert capsys.readouterr().err.count("000002 has no record of its settings") == 1
    assert json.loads((run / "train.json").read_text())["resolved"]["batch_size"] == 3


def test_a_change_of_a_killed_session_is_not_forgotten(copies, monkeypatch, capsys):
    data, run = copies
    with monkeypatch.context() as patch:
        kill_at(patch, 3)
        with pytest.raises(Killed):
            resume(data, run, "--optimizer.lr=0.5")
    assert resume(data, run) == 0
    assert "--optimizer.lr was not set, now 0.5" in capsys.readouterr().err
    (change,) = json.loads((run / "train.json").read_text())["changes"]
    assert change["step"] == 2


@pytest.mark.parametrize("episodes", ["3-1", "x", "0-", "0-999999999"])
def test_damaged_episodes_of_a_record_are_one_line(episodes):
    with refuses(UsageError, "run.unreadable"):
        list(episodes_in(episodes))


def test_episodes_are_ranges_in_a_record():
    assert list(episodes_in(number_ranges([5, 0, 1, 2]))) == [0, 1, 2, 5]
    assert list(episodes_in("")) == []


def test_another_hub_id_is_not_looked_for_in_the_old_folder(numbers, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path / "home"))
    write_numbers(tmp_path / "home/me/more", (9, 7, 8, 12))
    run = tmp_path / "run"
    assert main(["train", *words(numbers, run, SMALL_ACT, RUN, {"steps": 2})]) == 0
    resume = ["train", "--resume", f"--output_dir={run}", "--dataset.repo_id=me/more", "--steps=4"]
    assert main(resume) == 0
    record = json.loads((run / "train.json").read_text())
    assert [used["identity"]["frames"] for used in record["datasets"]] == [24, 36]


def test_a_dataset_that_no_step_has_used_is_forgotten(numbers, tmp_path):
    more, run = write_numbers(tmp_path / "more", (9, 7, 8, 12)), tmp_path / "run"
    assert main(["train", *words(numbers, run, SMALL_ACT, RUN, {"steps": 4})]) == 0
    for data, steps in ((more, 6), (numbers, 8)):
        flags = [f"--output_dir={run}", f"--dataset.root={data}", f"--steps={steps}"]
        assert main(["train", "--resume", *flags]) == 0
    config = run / "checkpoints/000004/pretrained_model/train_config.json"
    assert main(["train", "--resume", f"--config_path={config}"]) == 0  # the first dataset again
    (used,) = json.loads((run / "train.json").read_text())["datasets"]
    assert used["first_step"] == 0


def test_another_dataset_has_to_have_the_same_features(copies, tmp_path):
    run = copies[1]
    fewer = {key: entry for key, entry in FEATURES.items() if key != "observation.state"}
    for name, features, flags, code in (
        ("fewer", fewer, (), "dataset.features-differ"),
        ("longer", FEATURES, ("--dataset.eval_split=0.5", "--eval_steps=2"), VALIDATION),
    ):
        other = write_numbers(tmp_path / name, (5, 6), features)
        before = (run / "train.json").read_bytes()
        given = {"resume": "true", "output_dir": str(run), "dataset.root": str(other), "steps": "4"}
        given |= dict(flag.removeprefix("--").split("=") for flag in flags)
        settings, checkpoint = settings_from(given)
        config = build(TrainConfig, drop_lerobot_settings(settings))
        with refuses(UsageError, code):
            prepare(config, checkpoint)
        assert (run / "train.json").read_bytes() == before


def test_another_dataset_of_as_many_frames_is_refused(copies, capsys):
    data, run = copies
    shutil.rmtree(data)
    write_numbers(data, LENGTHS)
    with DatasetWriter.resume(data) as writer:  # one more episode, and the first one removed
        for at in range(LENGTHS[0]):
            frame = {k: np.full(e["shape"], at, np.float32) for k, e in FEATURES.items()}
            writer.add_frame(frame, "task 0")
        writer.end_episode()
    edit(data, in_place_destination(data), lambda source: delete(source, [0]))
    before = (run / "train.json").read_bytes()
    assert resume(data, run) == 2
    assert f"--policy.path={run}/checkpoints/000002/pretrained_model" in refused(capsys)
    assert (run / "train.json").read_bytes() == before


def test_appended_episodes_are_not_learnt_from_without_being_asked_for(copies, capsys):
    data, run = copies
    append(data, 2)
    assert resume(data, run) == 2
    assert "2 episodes" in refused(capsys)
    assert resume(data, run, "--dataset.episodes=[0,1,2]") == 0  # as it was


def test_a_training_from_before_identities_were_kept_is_resumed_with_a_note(copies, capsys):
    data, run = copies
    record = record_of_an_older_version(run)
    kept = record.pop("datasets")
    (run / "train.json").write_text(json.dumps(record))
    assert resume(data, run) == 0
    assert "note: " in capsys.readouterr().err
    (used,) = json.loads((run / "train.json").read_text())["datasets"]
    assert used["identity"] == kept[0]["identity"]


def test_a_record_of_one_identity_is_still_read(copies, tmp_path):
    data, run = copies
    record = record_of_an_older_version(run)
    record["dataset"] = record.pop("datasets")[0]["identity"]
    (run / "train.json").write_text(json.dumps(record))
    append(data)
    assert resume(data, run) == 2
    other = shutil.copytree(data, tmp_path / "larger")
    assert resume(other, run) == 0


def test_a_streamed_training_knows_its_dataset_too(copies, begun, tmp_path):
    data, run = copies
    streamed = {"dataset.streaming": "true", "steps": 2}
    shutil.rmtree(run)
    assert main(["train", *words(data, run, SMALL_ACT, RUN, streamed)]) == 0
    record, other = (json.loads((r / "train.json").read_text()) for r in (run, begun[1]))
    (streamed_one,), (read_one,) = record["datasets"], other["datasets"]
    assert streamed_one["identity"] == read_one["identity"]
    append(data)
    assert resume(data, run) == 2


def identity(root: Path, episodes: int | None = None) -> DatasetIdentity:
    return identity_of(open_handle(root).source, episodes)


def test_what_differs_is_named(begun, tmp_path):
    known = identity(begun[0])
    for name, change in {
        "its tasks differ": lambda source: set_tasks(source, {0: "another"}),
        "it has 2 episodes instead of 3": lambda source: delete(source, [1]),
    }.items():
        data = tmp_path / name.replace(" ", "_")
        shutil.copytree(begun[0], data)
        edit(data, in_place_destination(data), change)
        assert known.differences(identity(data)) == [name]
    other = write_numbers(tmp_path / "lengths", (9, 8, 7))
    assert known.differences(identity(other)) == ["its episodes are of other lengths"]
    fewer = {key: entry for key, entry in FEATURES.items() if key != "observation.state"}
    assert known.differences(identity(write_numbers(tmp_path / "fewer", LENGTHS, fewer))) == [
        "its observation.state is gone"
    ]
    assert identity(tmp_path / "fewer").differences(known) == []  # a feature was added


def test_the_identity_is_of_the_contents(begun, tmp_path):
    known, data = identity(begun[0]), tmp_path / "data"
    shutil.copytree(begun[0], data)
    stats = read_stats(data)
    stats["action"]["std"] = stats["action"]["std"] * 1.01  # worked out otherwise
    write_stats(data, stats)
    assert identity(data) == known
    append(data)  # which lays the files anew, too
    assert identity(data) != known
    assert identity(data, 3) == known
