"""Training with several processes gives the weights of one process with all samples."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from .builders import RUN, SMALL_ACT, SMALL_DIFFUSION, files_of, words

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(
    not torch.distributed.is_gloo_available(), reason="this torch was built without gloo"
)

from safetensors.torch import load_file  # noqa: E402

from proctor.cli import main  # noqa: E402
from proctor.training.data.sampler import BatchOrder, ProcessShare  # noqa: E402

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
TRAININGS = ("-m", "tests.unit.training.two_processes")
STARTED = [
    pytest.param(TRAININGS, id="forked"),
    pytest.param((*TORCHRUN, *TRAININGS), id="torchrun", marks=pytest.mark.slow),
]
# A mean over unpadded samples is the mean of its halves' means; ACT leaves padding out of its own.
ACT = SMALL_ACT | {"policy.chunk_size": 1, "policy.n_action_steps": 1, "policy.dropout": 0.0}
STEPS = {"steps": 8, "save_freq": 4, "log_freq": 1, "optimizer.lr": 1e-3}
COLLECTED = {"save_freq": 8, "log_freq": 4, "accelerator.gradient_accumulation.steps": 2}
COLLECTED |= {"policy.drop_n_last_frames": 1}  # 8 samples: no step of an epoch is a short one
COLLECTED |= {"policy.scheduler_warmup_steps": 0, "dataset.eval_split": 0.3, "eval_steps": 4}
HALF = {"batch_size": 2}
ON_DEVICE = {"dataset.cache": "device"}
SPREAD = {"parallelism.dp_shard": 2, "ema.enable": "true"}
SPREAD |= {"dataset.eval_split": 0.3, "eval_steps": 4, "steps": 4, "policy.use_vae": "false"}


@pytest.fixture(scope="module", params=STARTED)
def by_two(request, numbers, tmp_path_factory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """Run all two-process trainings at once, since starting processes takes most of the time."""
    runs = tmp_path_factory.mktemp("together")
    asked = [
        words(numbers, runs / "whole", RUN, ACT, STEPS, HALF),
        words(numbers, runs / "parts", RUN, ACT, STEPS, HALF, {"steps": 4}),
        ["--resume", f"--output_dir={runs / 'parts'}", "--steps=8"],
        words(numbers, runs / "diffusion", RUN, SMALL_DIFFUSION, COLLECTED, HALF, ON_DEVICE),
        words(numbers, runs / "spread", RUN, ACT, STEPS, HALF, SPREAD),
        words(numbers, runs / "copies", RUN, ACT, STEPS, HALF, SPREAD, {"parallelism.dp_shard": 1}),
        words(numbers, runs / "spread_parts", RUN, ACT, STEPS, HALF, SPREAD, {"steps": 2}),
        ["--resume", f"--output_dir={runs / 'spread_parts'}", "--steps=4"],
        ["interrupt=1:3", *words(numbers, runs / "stopped", RUN, ACT, STEPS, HALF)],
        ["--resume", f"--output_dir={runs / 'stopped'}"],
        ["interrupt=0:3", *words(numbers, runs / "spread_stopped", RUN, ACT, STEPS, HALF, SPREAD)],
        ["--resume", f"--output_dir={runs / 'spread_stopped'}"],
        words(numbers, runs / "refused", RUN, ACT, {"dataset.episodes": "[7]"}),
    ]
    (runs / "asked.json").write_text(json.dumps(asked))
    done = subprocess.run(
        [sys.executable, *request.param, str(runs / "asked.json")],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=Path(__file__).parents[3],
    )
    return runs, done


def losses(run: Path) -> list[float]:
    lines = [json.loads(line) for line in (run / "log.jsonl").open()]
    return [line["loss"] for line in lines if line["kind"] == "train"]


def test_two_processes_lose_what_one_with_the_doubled_batch_loses(numbers, by_two, tmp_path):
    runs, done = by_two
    assert main(["train", *words(numbers, tmp_path / "one", RUN, ACT, STEPS)]) == 0
    assert losses(runs / "whole") == pytest.approx(losses(tmp_path / "one"), rel=1e-5)
    state = runs / "whole/checkpoints/last/training_state/training_step.json"
    step = json.loads(state.read_text())
    assert (step["step"], step["num_processes"], step["dp_world_size"]) == (8, 2, 2)
    assert done.stdout.count(f"results: {runs / 'whole'}") == 1
    assert "find_unused_parameters" not in done.stderr  # torch warns of what is done on purpose


def test_a_resumed_run_of_two_ends_with_the_bits_of_an_undisturbed_one(by_two):
    runs, _ = by_two
    whole, parts = (runs / name for name in ("whole", "parts"))
    assert files_of(parts / "checkpoints/000008") == files_of(whole / "checkpoints/000008")
    assert losses(parts) == losses(whole)


@pytest.mark.parametrize(("name", "last"), [("", "000008"), ("spread_", "000004")])
def test_a_signal_to_one_process_stops_both_after_the_same_step(by_two, name, last):
    runs, done = by_two
    stopped, whole = runs / f"{name}stopped", runs / (name.removesuffix("_") or "whole")
    assert done.stderr.count(f"after step 3: its checkpoint is complete ({stopped}/") == 1
    assert files_of(stopped / "checkpoints" / last) == files_of(whole / "checkpoints" / last)
    assert losses(stopped) == losses(whole)
    record = json.loads((stopped / "train.json").read_text())
    assert record["resumed_step"] == 3


def test_weights_that_are_spread_over_processes_learn_what_copies_do(by_two):
    runs, _ = by_two
    spread, copies = (runs / name for name in ("spread", "copies"))
    assert losses(spread) == pytest.approx(losses(copies), rel=1e-5)
    held_out = [
        [json.loads(line)["loss"] for line in (run / "log.jsonl").open() if "held_out" in line]
        for run in (spread, copies)
    ]
    assert held_out[0] == pytest.approx(held_out[1], rel=1e-5)
    last = "checkpoints/000004"
    found, expected = (files_of(run / last).keys() for run in (spread, copies))
    assert found == expected  # whole tensors in the same files
    for file in ("pretrained_model/model", "pretrained_model_ema/model"):
        one, other = (load_file(run / last / f"{file}.safetensors") for run in (spread, copies))
        for key, value in other.items():
            # A tenth of one Adam step (lr 1e-3): some biases of attention have gradients that are
            # rounding noise, which Adam scales up. Another gradient would move weights by steps.
            torch.testing.assert_close(one[key], value, rtol=1e-4, atol=1e-4)
    step = json.loads((spread / last / "training_state/training_step.json").read_text())
    assert (step["parallelism"]["dp_replicate"], step["parallelism"]["dp_shard"]) == (1, 2)


def test_a_resumed_run_of_spread_weights_ends_with_the_bits_of_an_undisturbed_one(by_two):
    runs, _ = by_two
    whole, parts = (runs / name / "checkpoints/000004" for name in ("spread", "spread_parts"))
    assert files_of(parts) == files_of(whole)


def test_one_process_goes_on_with_what_two_had_spread_and_says_so(by_two, capfd):
    runs, _ = by_two
    asked = [f"--output_dir={runs / 'spread_parts'}", "--steps=6", "--parallelism.dp_shard=1"]
    assert main(["train", "--resume", *asked]) == 0
    said = capfd.readouterr().err
    assert "note: 1 process(es) instead of 2" in said


def test_several_batches_of_two_processes_make_one_update(numbers, by_two, tmp_path):
    runs, _ = by_two
    asked = words(numbers, tmp_path / "one", RUN, SMALL_DIFFUSION, COLLECTED)
    assert main(["train", *asked]) == 0
    assert losses(runs / "diffusion") == pytest.approx(losses(tmp_path / "one"), rel=1e-5)


def test_what_cannot_be_is_said_by_one_process(by_two):
    runs, done = by_two
    assert done.returncode != 0
    assert done.stderr.count("proctor: error: --dataset.episodes") == 1
    assert not (runs / "refused").exists()


@pytest.mark.parametrize(
    ("frames", "size", "ranks"),
    [
        (11, 2, [[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [10, 0]]]),
        (3, 2, [[[0, 1]], [[2, 0]]]),
        (9, 4, [[[0, 1, 2, 3], [8, 0, 1, 2]], [[4, 5, 6, 7], [3, 4, 5, 6]]]),
    ],
)
def test_batches_are_dealt_as_accelerate_deals_them(frames, size, ranks):
    """Expected: BatchSamplerShard of accelerate 1.15.0, as it printed them."""
    for rank, expected in enumerate(ranks):
        order = BatchOrder(
            np.arange(frames), size, 0, shuffled=False, share=ProcessShare(rank, len(ranks))
        )
        n = order.batches_per_epoch
        assert [batch.tolist() for batch in order.batches(0, n)] == expected
        assert [batch.tolist() for batch in order.batches(n + 1, 2 * n)] == expected[1:]
