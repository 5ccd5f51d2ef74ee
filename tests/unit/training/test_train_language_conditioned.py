"""Language-conditioned policies with a tokenizer, in training and in the engine."""

from __future__ import annotations

import pytest

from proctor.cli import main
from proctor.policies.lerobot.checkpoint.checkpoint import read_checkpoint
from tests.conftest import digests
from tests.unit.policies.tiny_tokenizer import write_clip

from .builders import RUN, files_of, words
from .test_train import Killed, kill_at

pytestmark = pytest.mark.vla
SMALL_DIT = {
    "policy.type": "multi_task_dit",
    "policy.horizon": 8,
    "policy.n_action_steps": 4,
    "policy.hidden_dim": 16,
    "policy.num_layers": 1,
    "policy.num_heads": 2,
    "policy.timestep_embed_dim": 8,
    "policy.tokenizer_max_length": 12,
    "policy.load_clip_weights": "false",
    "policy.device": "cpu",
}


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return write_clip(tmp_path_factory.mktemp("clip") / "clip")


def asked(numbers, clip, folder) -> list[str]:
    flow = {"policy.objective": "flow_matching", "policy.num_integration_steps": 3}
    return words(numbers, folder, SMALL_DIT, flow, {"policy.text_encoder_name": clip}, RUN)


@pytest.fixture(scope="module")
def trained(numbers, clip, tmp_path_factory):
    folder = tmp_path_factory.mktemp("told") / "run"
    assert main(["train", *asked(numbers, clip, folder)]) == 0
    return folder


def test_a_killed_training_ends_with_the_bits_of_an_undisturbed_one(
    numbers, clip, trained, tmp_path, monkeypatch
):
    folder = tmp_path / "killed"
    with monkeypatch.context() as patch:
        kill_at(patch, 5)
        with pytest.raises(Killed):
            main(["train", *asked(numbers, clip, folder)])
    assert main(["train", "--resume", f"--output_dir={folder}"]) == 0
    whole, killed = (f / "checkpoints/000008" for f in (trained, folder))
    assert files_of(killed) == files_of(whole)


def test_what_is_trained_has_its_tokenizer_and_needs_no_other(trained, clip):
    folder = trained / "checkpoints/last/pretrained_model"
    assert (folder / "tokenizer/tokenizer.json").is_file()
    parts = read_checkpoint(folder)
    assert "tokenizer/tokenizer.json" in parts.files
    assert parts.config.text_encoder_name == str(clip)


def test_the_batch_size_the_scheduler_and_a_resume_change_nothing(run, trained):
    policy = {
        "policy__type": "pretrained",
        "policy__path": str(trained / "checkpoints/last/pretrained_model"),
        "env__episode_length": 12,
        "env__endless": True,
        "env__n_tasks": 3,
        "eval__use_async_envs": False,
        "eval__n_episodes": 3,
    }
    alone = run(eval__batch_size=1, **policy)
    for size, scheduler in ((3, "continuous"), (8, "continuous"), (8, "lockstep")):
        distributed = run(eval__batch_size=size, eval__scheduler=scheduler, **policy)
        assert digests(distributed) == digests(alone)
    part = run(**policy | {"eval__n_episodes": 1})
    rest = run(output_dir=str(part.path), resume=True, **policy)
    assert digests(rest) == digests(alone)
    other = run(**policy, policy__instruction="open the red door")
    assert digests(other) != digests(alone), "it must hear"
