"""`proctor train --reward_model.type=reward_classifier`: trained, resumed, and used to judge."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from proctor.cli import main
from proctor.config.builder import build
from proctor.config.lerobot.training import drop_lerobot_settings
from proctor.config.training import TrainConfig
from proctor.datasets.writer import DatasetWriter
from proctor.errors import UsageError
from proctor.policies.blocks.encoder_sizes import ResNet10Sizes
from proctor.policies.blocks.resnet10 import ResNet10
from proctor.policies.lerobot.checkpoint.checkpoint import load_policy
from proctor.policies.reward_classifier.predictor import load_predictor
from tests.refusals import refuses
from tests.tiny_families import offered

from .builders import files_of, words

CAMERA, SIDE, AXES = "observation.images.front", 128, ["height", "width", "channels"]
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
RUN = {"steps": 30, "batch_size": 8, "save_freq": 15, "log_freq": 15, "num_workers": 0}
WEIGHTS = Path("pretrained_model") / "model.safetensors"
LAST = Path("checkpoints") / "last" / "pretrained_model"


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("encoders") / "r10"
    folder.mkdir()
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 12, 16, 20]}
    (folder / "config.json").write_text(json.dumps({"model_type": "resnet10"} | sizes))
    torch.manual_seed(0)
    save_file(ResNet10(ResNet10Sizes(**sizes)).state_dict(), folder / "model.safetensors")
    return folder


def picture(success: bool, drawn: np.random.Generator) -> np.ndarray:
    """Bright below if a success, bright above if not."""
    shown = drawn.integers(0, 60, (SIDE, SIDE, 3), dtype=np.uint8)
    half = slice(SIDE // 2, None) if success else slice(None, SIDE // 2)
    shown[half] += 150
    return shown


@pytest.fixture(scope="module")
def rewarded(tmp_path_factory) -> Path:
    """Write episodes whose last frames show a success."""
    root = tmp_path_factory.mktemp("data") / "rewarded"
    vector = {"dtype": "float32", "shape": [2], "names": None}
    features = {
        "observation.state": vector,
        "action": vector,
        "next.reward": {"dtype": "float32", "shape": [1], "names": None},
        CAMERA: {"dtype": "image", "shape": [SIDE, SIDE, 3], "names": AXES},
    }
    writer, drawn = DatasetWriter.create(root, fps=10, features=features), np.random.default_rng(0)
    for _ in range(2):
        for step in range(8):
            success = step >= 4
            frame = {key: np.zeros(2, np.float32) for key in ("observation.state", "action")}
            frame |= {"next.reward": np.array([success], np.float32)}
            frame |= {CAMERA: picture(success, drawn)}
            writer.add_frame(frame, "lift")
        writer.end_episode()
    writer.close()
    return root


def flags(encoder: Path, **more) -> dict:
    return {
        "reward_model.type": "reward_classifier",
        "reward_model.model_name": encoder,
        "reward_model.num_cameras": 1,
        "reward_model.hidden_dim": 8,
        "reward_model.latent_dim": 6,
        "reward_model.image_embedding_pooling_dim": 2,
        "reward_model.learning_rate": 0.05,
        "dataset.use_imagenet_stats": "true",
    } | {f"reward_model.{name}": value for name, value in more.items()}


@pytest.fixture(scope="module")
def trained(rewarded, encoder, tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("trained") / "run"
    assert main(["train", *words(rewarded, output, RUN, flags(encoder))]) == 0
    return output


def test_a_trained_classifier_tells_success_from_failure(trained):
    predictor = load_predictor(str(trained / LAST), device="cpu")
    drawn = np.random.default_rng(1)
    shown = np.stack([picture(success, drawn) for success in (True, False, True, False)])
    assert predictor.predict_reward({CAMERA: shown}).tolist() == [1, 0, 1, 0]
    alone = [predictor.probabilities({CAMERA: shown[i : i + 1]})[0] for i in range(4)]
    np.testing.assert_array_equal(predictor.probabilities({CAMERA: shown}), alone)


def test_it_uses_the_normalisation_it_was_trained_with(trained):
    predictor = load_predictor(str(trained / LAST), device="cpu")
    shown = np.stack([picture(True, np.random.default_rng(2))])
    raw = torch.from_numpy(shown).movedim(-1, 1) / 255
    mean, std = (
        torch.tensor(v).reshape(3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    )
    seen = []
    predictor._network.encoder.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    predictor.predict_reward({CAMERA: shown})
    torch.testing.assert_close(seen[0], (raw - mean) / std, rtol=0, atol=1e-5)


def test_only_the_head_is_trained_unless_projections_are_asked_for(
    rewarded, encoder, trained, tmp_path
):
    short = {"steps": 2, "save_freq": 1}
    assert main(["train", *words(rewarded, tmp_path / "run", RUN, short, flags(encoder))]) == 0
    more = flags(encoder, train_projections="true")
    assert main(["train", *words(rewarded, tmp_path / "more", RUN, short, more)]) == 0
    for name, others in (("run", False), ("more", True)):
        first, last = (
            load_file(
                tmp_path / name / "checkpoints" / step / "pretrained_model" / "model.safetensors"
            )
            for step in ("000001", "000002")
        )
        changed = {key.partition(".")[0] for key in first if not torch.equal(first[key], last[key])}
        assert changed == {"classifier_head", *(["encoders"] if others else [])}


@pytest.mark.parametrize("more", [{}, {"train_projections": "true"}])
def test_a_resumed_training_ends_with_the_same_files(rewarded, encoder, tmp_path, more):
    short = {"steps": 4, "save_freq": 2}
    settings = flags(encoder, **more)
    assert main(["train", *words(rewarded, tmp_path / "whole", RUN, short, settings)]) == 0
    half = words(rewarded, tmp_path / "half", RUN, short, {"steps": 2}, settings)
    assert main(["train", *half]) == 0
    resume = ["train", "--resume", f"--output_dir={tmp_path / 'half'}", "--steps=4"]
    assert main(resume) == 0
    whole, again = (
        files_of(tmp_path / run / "checkpoints" / "000004") for run in ("whole", "half")
    )
    assert whole == again


def test_the_files_are_lerobots(trained):
    folder = trained / LAST
    config = json.loads((folder / "config.json").read_text())
    for absent in ("n_obs_steps", "use_amp", "use_peft", "train_projections", "model_file"):
        assert absent not in config
    assert config["output_features"] == {"next.reward": {"type": "REWARD", "shape": [1]}}
    after = json.loads((folder / "classifier_postprocessor.json").read_text())
    assert after["steps"][1] == {
        "class": "lerobot.processor.pipeline.IdentityProcessorStep",
        "config": {},
    }
    before = json.loads((folder / "classifier_preprocessor.json").read_text())
    assert [list(s["config"].get("features", {})) for s in before["steps"]] == [
        [CAMERA], ["next.reward"], []
    ]  # fmt: skip
    recorded = json.loads((folder / "train_config.json").read_text())
    assert recorded["policy"] is None
    assert recorded["reward_model"]["type"] == "reward_classifier"


def test_a_classifier_is_no_policy(trained):
    with refuses(UsageError, "policy.reward-model"):
        load_policy(str(trained / LAST), None, {}, offered())


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"reward_model.type": "robometer"}, "plugin.unknown"),
        ({"reward_model.num_cameras": 1}, "flag.missing"),
        ({"reward_model.type": "reward_classifier", "policy.type": "act"}, "flag.conflict"),
    ],
)
def test_wrong_flags_are_refused(given, code):
    with refuses(UsageError, code):
        build(TrainConfig, drop_lerobot_settings({"dataset.repo_id": "a/b"} | given))


def test_lerobots_file_without_a_reward_model_is_read_as_before():
    settings = {"reward_model": None, "policy": {"type": "act"}, "dataset": {"repo_id": "a/b"}}
    assert build(TrainConfig, drop_lerobot_settings(settings)).policy.type == "act"


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"reward_model.num_cameras": 2}, "num_cameras"),
        ({"dataset.image_size": "[64,64]"}, "97 to 128"),
        ({"env.type": "fake"}, "--env"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_it_starts(
    rewarded, encoder, tmp_path, capsys, changed, says
):
    given = words(rewarded, tmp_path / "run", RUN, flags(encoder), changed)
    assert main(["train", *given]) == 2
    assert says in capsys.readouterr().err
