"""Weights & Biases of a training: LeRobot's keys, the same run when resumed."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace

import pytest

from tests.run_folders import eight_episodes, write_run
from tests.training_folders import TINY_VIDEO
from tests.wandb_files import logged

from .builders import RUN, SMALL_ACT, words

torch = pytest.importorskip("torch")
pytest.importorskip("wandb", reason="W&B is not installed (proctor[wandb])")

from proctor.cli import main  # noqa: E402
from proctor.config.builder import build  # noqa: E402
from proctor.config.training import TrainConfig  # noqa: E402
from proctor.runs.training import EvaluationLogRow  # noqa: E402
from proctor.training.distributed import DistributedContext  # noqa: E402
from proctor.training.metrics.tracking import TrainingWandb, wandb_tags  # noqa: E402

OFFLINE = {"wandb.enable": "true", "wandb.mode": "offline"}
HELD_OUT = {"dataset.eval_split": 0.4, "eval_steps": 4}


@pytest.fixture(autouse=True)
def no_wandb_of_the_user(tmp_path, monkeypatch):
    """Keep the user's W&B login and settings out of the tests."""
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_PROJECT", "WANDB_RUN_ID", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HOME", "NETRC", "WANDB_CONFIG_DIR", "WANDB_CACHE_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "home" / name))


def test_an_offline_training_has_lerobots_keys_tags_and_weights(numbers, tmp_path):
    folder = tmp_path / "run"
    assert main(["train", *words(numbers, folder, SMALL_ACT, RUN, OFFLINE, HELD_OUT)]) == 0
    (session,) = logged(folder)
    trained = [line for line in session.history if "train/loss" in line]
    assert [line["train/steps"] for line in trained] == [2, 4, 6, 8]
    assert [line["train/samples"] for line in trained] == [8, 16, 24, 32]
    keys = {"grad_norm", "lr", "update_s", "dataloading_s", "step_s", "epochs", "samples_per_s"}
    assert {f"train/{name}" for name in (*keys, "l1_loss", "kld_loss")} <= set(trained[0])
    held_out = {line["eval/steps"]: line["eval/eval_loss"] for line in session.history[1:]
                if "eval/eval_loss" in line}  # fmt: skip
    assert set(held_out) == {4, 8}
    assert session.project == "lerobot"
    assert set(session.tags) == {"policy:act", "seed:1000", "dataset:someone/numbers"}
    assert len(session.artifacts) == 4
    assert session.artifacts[0] == "policy_act-seed_1000-dataset_someone_numbers-000002"
    assert session.exit_code == 0


def test_a_resumed_training_goes_on_with_the_same_wandb_run(numbers, tmp_path):
    folder = tmp_path / "run"
    quiet = {"wandb.disable_artifact": "true", "wandb.add_tags": "false", "wandb.run_id": "mine1"}
    assert main(["train", *words(numbers, folder, SMALL_ACT, RUN, OFFLINE, quiet)]) == 0
    assert main(["train", "--resume", f"--output_dir={folder}", "--steps=10"]) == 0
    first, second = logged(folder)
    assert first.id == second.id == "mine1"
    assert json.loads((folder / "wandb.json").read_text()) == {"id": "mine1"}
    assert [line["train/steps"] for line in second.history] == [10]
    assert first.artifacts == first.tags == []


def test_an_evaluation_is_logged_with_its_interval_and_a_video(tmp_path):
    asked = {"policy.type": "act", "dataset.repo_id": "x/y", "env.type": "fake"}
    config = build(TrainConfig, asked | OFFLINE)
    run = write_run(tmp_path / "eval/000004", eight_episodes())
    video = run / eight_episodes()[0].video
    video.parent.mkdir(parents=True)
    shutil.copy(TINY_VIDEO, video)
    setup = SimpleNamespace(
        config=config,
        device=torch.device("cpu"),
        distributed=DistributedContext(),
        order=SimpleNamespace(frames=[0, 1]),
    )
    log = TrainingWandb(setup, tmp_path)
    log.log_evaluation(EvaluationLogRow(4, 50.0, (20.0, 80.0), 8, None, 1.5, 3.0, errors=2), run)
    log.log_evaluation(EvaluationLogRow(8, problem="it broke"), run)
    log.end(failed=True)
    (session,) = logged(tmp_path)
    (line,) = session.history
    assert (line["eval/steps"], line["eval/pc_success"]) == (4, 50.0)
    assert (line["eval/avg_sum_reward"], line["eval/eval_s"]) == (1.5, 3.0)
    assert (line["eval/pc_success_low95"], line["eval/pc_success_high95"]) == (20.0, 80.0)
    assert line["eval/n_errors"] == 2
    assert line["eval/pc_success_if_errors_failed"] == 40.0
    assert line["eval/pc_success_if_errors_succeeded"] == 60.0
    assert line["eval/video._type"] == "video-file"
    assert "env:fake" in wandb_tags(config)
    assert session.exit_code == 1


def test_without_a_login_or_a_mode_nothing_starts(numbers, tmp_path, capsys):
    asked = words(numbers, tmp_path / "run", SMALL_ACT, RUN, {"wandb.enable": "true"})
    assert main(["train", *asked]) == 2
    assert "add --wandb.mode=offline" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
