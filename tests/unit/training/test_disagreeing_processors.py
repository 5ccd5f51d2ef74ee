"""Processors that contradict config.json, and environments with other rates or ranges."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from .builders import FEATURES, RUN, SMALL_ACT, words, write_numbers

pytest.importorskip("torch")

from proctor.cli import main
from proctor.datasets.writer import DatasetWriter
from proctor.errors import SpecMismatch
from proctor.features import ActionSpec, Interface
from proctor.policies.control_check import (
    ActionRange,
    action_range,
    fps_notes,
    range_notes,
    refuse_disjoint,
)
from proctor.policies.lerobot.checkpoint.checkpoint import load_policy, read_checkpoint
from proctor.policies.lerobot.checkpoint.trained_channels import trained_fps

LAST = "checkpoints/last/pretrained_model"
SHORT = {"steps": 2, "save_freq": 2}
FAKE = {"env.type": "fake", "env.episode_length": 4, "eval.n_episodes": 1}


@pytest.fixture(scope="module")
def begun(tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("begun")
    data = write_numbers(folder / "data")
    assert main(["train", *words(data, folder / "run", SMALL_ACT, RUN, SHORT)]) == 0
    return data, folder / "run"


def changed(folder: Path, pipeline: str, **settings) -> None:
    """Change the settings of a checkpoint's normalizer; None removes observation.state."""
    file = folder / f"policy_{pipeline}.json"
    found = json.loads(file.read_text())
    for step in found["steps"]:
        if step["registry_name"].endswith("normalizer_processor"):
            step["config"] |= settings
            if not settings:
                del step["config"]["features"]["observation.state"]
    file.write_text(json.dumps(found))


@pytest.fixture
def run(begun, tmp_path) -> Path:
    shutil.copytree(begun[1], tmp_path / "run", symlinks=True)
    return tmp_path / "run"


def notes_of(folder: Path) -> str:
    return "\n".join(read_checkpoint(folder).notes)


def test_a_checkpoint_that_agrees_with_itself_needs_no_note(run):
    assert "config.json" not in notes_of(run / LAST)


def test_an_input_that_the_normalizer_does_not_list_is_noted(run):
    changed(run / LAST, "preprocessor")
    said = notes_of(run / LAST)
    assert "observation.state is MEAN_STD, policy_preprocessor does not list it" in said


def test_another_mode_than_the_configs_is_noted_and_played(run):
    identity = {"STATE": "IDENTITY", "ENV": "MEAN_STD", "ACTION": "IDENTITY"}
    changed(run / LAST, "preprocessor", norm_map=identity)
    changed(run / LAST, "postprocessor", norm_map=identity)
    said = notes_of(run / LAST)
    assert "observation.state is MEAN_STD, policy_preprocessor IDENTITY" in said
    assert "action is MEAN_STD, policy_postprocessor IDENTITY" in said


def test_fine_tuning_normalises_as_config_json_says(run, begun, tmp_path, capsys):
    changed(run / LAST, "preprocessor", norm_map={"STATE": "IDENTITY"})
    how = {"policy.path": run / LAST, "policy.device": "cpu"}
    assert main(["train", *words(begun[0], tmp_path / "tuned", how, RUN, SHORT)]) == 0
    assert "config.json is followed" in capsys.readouterr().err
    assert "config.json" not in notes_of(tmp_path / "tuned" / LAST)


def test_actions_that_are_learnt_in_one_scale_and_played_in_another_are_refused(run, capsys):
    changed(run / LAST, "postprocessor", norm_map={"ACTION": "MIN_MAX"})
    assert main(["train", "--resume", f"--output_dir={run}", "--steps=4"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def fast(root: Path, scale: float, offset: float = 0.0) -> Path:
    drawn = np.random.default_rng(0)
    with DatasetWriter.create(root, fps=50, features=FEATURES) as writer:
        for _ in range(2):
            for _ in range(8):
                frame = {
                    key: drawn.normal(size=entry["shape"]).astype(np.float32)
                    for key, entry in FEATURES.items()
                }
                frame["action"] = frame["action"] * np.float32(scale) + np.float32(offset)
                writer.add_frame(frame, "reach the goal")
            writer.end_episode()
    return root


def test_another_rate_and_range_than_the_environments_are_noted(tmp_path, capsys):
    data, run = fast(tmp_path / "data", 100), tmp_path / "run"
    settings = words(data, run, SMALL_ACT, RUN, SHORT, FAKE, {"env_eval_freq": 2})
    assert main(["train", *settings]) == 0
    for said in (capsys.readouterr().err, (run / "eval/000002.log").read_text()):
        assert "50 actions per second, fake executes 10" in said
        assert "fake clips it to [-1, 1]" in said


def test_actions_that_are_clipped_always_are_refused_before_a_training(tmp_path, capsys):
    data, run = fast(tmp_path / "data", 0.1, offset=100), tmp_path / "run"
    settings = words(data, run, SMALL_ACT, RUN, SHORT, FAKE, {"env_eval_freq": 2})
    assert main(["train", *settings]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not run.exists()


def test_a_checkpoint_alone_says_its_rate_where_its_dataset_still_lies(begun, tmp_path):
    run = begun[1]
    assert trained_fps(run / LAST) == 10
    shutil.copytree(run / LAST, tmp_path / "alone")
    assert trained_fps(tmp_path / "alone") == 10  # train_config.json names the dataset's folder
    (tmp_path / "alone/train_config.json").write_text("{")
    assert trained_fps(tmp_path / "alone") is None
    interface = Interface("robot", read_checkpoint(run / LAST).config.features, ActionSpec(2), 20)
    policy = load_policy(str(run / LAST), None, {"device": "cpu"}, interface)
    assert any("10 actions per second, robot executes 20" in note for note in policy.spec.notes)


ARM = Interface("arm", {}, ActionSpec(2, (-1.0, 0.0), (1.0, 512.0)), 10)


def ranged(low: list[float], high: list[float]) -> ActionRange:
    found = action_range({"min": np.array(low), "max": np.array(high)})
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("low", "high", "noted"),
    [
        ([-1, 0], [1, 512], False),
        ([-1.5, -20], [1.5, 530], False),  # a controller that asks for a little too much
        ([-90, 0], [90, 512], True),  # degrees
        ([-0.001, 0], [0.001, 1], True),  # a hundredth of the range
        ([-0.001, 0], [0.001, 512], False),  # one number that hardly moves
    ],
)
def test_ranges_of_other_units_are_noted(low, high, noted):
    assert bool(range_notes(ranged(low, high), ARM)) is noted


def test_an_environment_without_a_range_or_rate_is_not_compared():
    free = Interface("free", {}, ActionSpec(2))
    assert range_notes(ranged([-90, 0], [90, 5]), free) == []
    assert fps_notes(50, free) == []
    refuse_disjoint(ranged([90, 0], [91, 5]), free)


def test_only_ranges_that_never_meet_are_refused():
    refuse_disjoint(ranged([0.5, 0], [90, 5]), ARM)
    refuse_disjoint(ranged([1.01, 0], [1.01, 5]), ARM)  # rounding
    with pytest.raises(SpecMismatch):
        refuse_disjoint(ranged([2, 0], [90, 5]), ARM)
    unclipped = Interface("arm", {}, ActionSpec(2, -1.0, 1.0, clipped=False))
    refuse_disjoint(ranged([2, 0], [90, 5]), unclipped)
