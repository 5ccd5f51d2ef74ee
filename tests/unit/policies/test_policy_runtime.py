"""Pieces, padding, devices, dtypes; what is marked gpu is run by `make test-gpu`."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from small_policies import (
    ACTION,
    OFFERED,
    batch_of,
    episode,
    fresh_queries,
    make_parts,
    make_policy,
    small_act,
    small_diffusion,
    write_small,
)

from proctor.policies.act import config as act
from proctor.policies.base import Policy
from proctor.policies.diffusion import config as diffusion
from proctor.policies.lerobot.checkpoint import location as hub
from proctor.policies.lerobot.checkpoint.checkpoint import load_policy, read_checkpoint
from proctor.policies.lerobot.checkpoint.saving import write_checkpoint
from proctor.policies.runtime import runner as runner_module
from proctor.policies.runtime.chunk_policy import ChunkPolicy
from proctor.policies.runtime.runner import GraphRunner, Runner, pad_rows

CPU = torch.device("cpu")


class CountingForward:
    def __init__(self):
        self.sizes = []

    def __call__(self, rows):
        self.sizes.append(len(rows["x"]))
        return rows["x"] * 2


@pytest.mark.parametrize(
    ("sizes", "n", "ran"),
    [
        ((1,), 3, [1, 1, 1]),
        ((4,), 1, [4]),
        ((4,), 9, [4, 4, 4]),
        ((1, 2, 4, 8), 3, [4]),
        ((1, 2, 4, 8), 17, [8, 8, 1]),
    ],
)
def test_batches_run_in_pieces_of_the_given_sizes(sizes, n, ran):
    forward = CountingForward()
    rows = np.arange(n * 2, dtype=np.float32).reshape(n, 2)
    found = Runner(forward, CPU, sizes)({"x": rows})
    assert forward.sizes == ran
    np.testing.assert_array_equal(found.numpy(), rows * 2)


def test_read_only_observations_are_copied_not_complained_about(recwarn):
    rows = np.ones((2, 3), dtype=np.float32)
    rows.setflags(write=False)
    torch.from_numpy(pad_rows(rows, 2))
    assert len(recwarn) == 0


@pytest.mark.parametrize("make", [small_act, small_diffusion])
def test_a_policy_keeps_the_protocol(make):
    policy: Policy = make_policy(make())
    actions = policy.act(batch_of(policy, fresh_queries(policy, [episode(0), episode(1)])))
    assert actions.shape == (2, policy.spec.n_action_steps, 3)
    assert actions.dtype == np.float32
    assert policy.protocol()["n_action_steps"] == policy.spec.n_action_steps


@pytest.mark.parametrize("make", [small_act, pytest.param(small_diffusion, marks=pytest.mark.slow)])
def test_lower_precision_gives_nearly_the_same_actions(make):
    exact, rough = (make_policy(make(dtype=dtype)) for dtype in ("float32", "bfloat16"))
    batch = batch_of(exact, fresh_queries(exact, [episode(0)]))
    difference = np.abs(exact.act(batch) - rough.act(batch)).max()
    assert 0 < difference < 0.3


def test_n_action_steps_shortens_the_chunk_and_stands_in_the_protocol(tmp_path):
    folder = write_small(small_act(), tmp_path / "checkpoint")
    policies = [
        load_policy(str(folder), None, {"device": "cpu", "n_action_steps": k}, OFFERED)
        for k in (2, 6)
    ]
    batch = batch_of(policies[0], fresh_queries(policies[0], [episode(0)]))
    short, whole = (policy.act(batch) for policy in policies)
    np.testing.assert_array_equal(short, whole[:, :2])
    assert policies[0].protocol()["n_action_steps"] == 2


def test_flags_may_still_be_text(tmp_path):
    folder = write_small(small_diffusion(), tmp_path / "checkpoint")
    flags = {"device": "cpu", "n_action_steps": "2", "num_inference_steps": "5", "rename_map": "{}"}
    policy = load_policy(str(folder), None, flags, OFFERED)
    assert policy.spec.n_action_steps == 2
    assert len(policy.network.schedule.steps) == 5
    assert policy.parts.config.rename_map == {}


@pytest.mark.parametrize("config", [small_act(), small_diffusion()], ids=["act", "diffusion"])
def test_reading_and_writing_changes_no_byte(tmp_path, config):
    write_small(config, tmp_path / "first")
    write_checkpoint(read_checkpoint(tmp_path / "first"), tmp_path / "second")
    for file in (tmp_path / "first").iterdir():
        assert file.read_bytes() == (tmp_path / "second" / file.name).read_bytes(), file.name


def test_unknown_keys_survive_a_round_trip(tmp_path):
    parts = make_parts(replace(small_act(), unknown={"later": [1]}))
    write_checkpoint(parts, tmp_path / "first")
    assert read_checkpoint(tmp_path / "first").config.unknown == {"later": [1]}


@pytest.mark.parametrize("plugin", [act.PLUGIN, diffusion.PLUGIN], ids=["act", "diffusion"])
def test_an_untrained_policy_is_the_same_every_time(plugin):
    small = {"act": small_act, "diffusion": small_diffusion}[plugin.config().type]
    config = small(input_features={}, output_features={}, device="cpu")
    first, second = (plugin.make(config, OFFERED) for _ in range(2))
    batch = batch_of(first, fresh_queries(first, [episode(0)]))
    np.testing.assert_array_equal(first.act(batch), second.act(batch))
    assert first.parts.config.output_features == ACTION


def test_configs_and_plugins_import_no_torch():
    rooms = "act.config, diffusion.config, lerobot.config.config, lerobot.checkpoint.location, base"
    modules = ", ".join(f"proctor.policies.{room}" for room in rooms.split(", "))
    code = f"import sys, {modules}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_hub_is_asked_for_the_revision(tmp_path, monkeypatch):
    folder = write_small(small_act(), tmp_path / "abc123")
    asked = []

    def download(repo, revision, files):
        asked.append((repo, revision))
        return folder

    monkeypatch.setattr(hub, "download", download)
    found = hub.locate("someone/policy", "v2")
    assert asked == [("someone/policy", "v2")]
    assert found == hub.CheckpointFolder(folder, commit="abc123")


class FakeGraph:
    """A graph that takes 0.1 s to capture, and 0.04 s to replay."""

    def __init__(self, runner, piece, size):
        self.capture_s, self.replay_s, self.size = 0.1, 0.04, size
        runner.captured.append(size)

    def replay(self, piece, n):
        return torch.from_numpy(piece["x"][:n]) + self.size


def graphs_of(monkeypatch, sizes):
    """Return a runner with fake graphs: no CUDA device is needed."""
    monkeypatch.setattr(runner_module, "Graph", FakeGraph)
    runner = object.__new__(GraphRunner)
    Runner.__init__(runner, None, CPU, sizes)
    runner.graphs, runner.lost_s, runner.captured = {}, {}, []
    return runner


def asked(runner, n, width=1):
    return runner({"x": np.zeros((n, width), np.float32)})[0, 0].item()


def test_a_size_without_a_graph_is_run_by_a_larger_one_until_that_costs_more(monkeypatch):
    runner = graphs_of(monkeypatch, (1, 2, 4, 8))
    assert asked(runner, 8) == 8
    # Each time half of 0.04 s is lost; a graph of its own takes 0.1 s.
    assert [asked(runner, 4) for _ in range(6)] == [8, 8, 8, 8, 4, 4]
    assert runner.captured == [8, 4]
    assert asked(runner, 2) == 4  # the smallest that is larger
    assert asked(runner, 8, width=3) == 8  # other shapes have graphs of their own
    assert runner.captured == [8, 4, 8]


def test_without_a_larger_graph_one_is_captured_at_once(monkeypatch):
    runner = graphs_of(monkeypatch, (1, 2, 4))
    assert [asked(runner, n) for n in (1, 2, 4)] == [1, 2, 4]


def test_the_largest_graph_and_its_halves_are_captured_first(monkeypatch):
    runner = graphs_of(monkeypatch, tuple(range(1, 17)))
    rows = {"x": np.zeros((16, 1), np.float32)}
    for _ in runner.warm_up(14, lambda size: {"x": rows["x"][:size]}):
        pass
    assert runner.captured[:4] == [14, 7, 3, 1]
    assert sorted(runner.captured) == list(range(1, 15))


@pytest.mark.gpu
@pytest.mark.parametrize("make", [small_act, small_diffusion])
def test_graph_replay_equals_eager(make):
    parts = make_parts(make())
    policy = ChunkPolicy(parts, "cuda")
    batch = batch_of(policy, fresh_queries(policy, [episode(i) for i in range(3)]))
    replayed = policy.act(batch)
    policy.runner = Runner(policy._forward, policy.device, (3,))
    np.testing.assert_allclose(replayed, policy.act(batch), rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("make", [small_act, small_diffusion])
def test_strict_padding_is_bit_identical_on_the_gpu(make):
    policy = ChunkPolicy(make_parts(make(pad_to=8)), "cuda")
    specs = [episode(index) for index in range(8)]
    full = policy.act(batch_of(policy, fresh_queries(policy, specs)))
    for size in (1, 3, 7):
        part = policy.act(batch_of(policy, fresh_queries(policy, specs[-size:])))
        np.testing.assert_array_equal(part, full[-size:])


@pytest.mark.gpu
def test_graphs_of_all_sizes_live_together():
    policy = ChunkPolicy(make_parts(small_diffusion()), "cuda")
    specs = [episode(index) for index in range(16)]
    batches = {n: batch_of(policy, fresh_queries(policy, specs[:n])) for n in (16, 1, 3, 8)}
    first = {n: policy.act(batch) for n, batch in batches.items()}
    for n in (3, 16, 8, 1):
        np.testing.assert_array_equal(policy.act(batches[n]), first[n])


@pytest.mark.gpu
@pytest.mark.parametrize("make", [small_act, small_diffusion])
def test_a_policy_that_was_warmed_up_acts_as_one_that_was_not(make):
    parts = make_parts(make())
    cold, warm = ChunkPolicy(parts, "cuda"), ChunkPolicy(parts, "cuda")
    offered = OFFERED.features
    for _ in warm.warm_up({key: offered[key] for key in warm.spec.inputs}, most=3):
        pass
    assert sorted(size for size, *_ in warm.runner.graphs) == [1, 2, 3]
    assert not cold.runner.graphs
    batch = batch_of(cold, fresh_queries(cold, [episode(i) for i in range(3)]))
    np.testing.assert_array_equal(warm.act(batch), cold.act(batch))


def test_on_a_cpu_there_is_nothing_to_warm_up():
    policy = ChunkPolicy(make_parts(small_act()), "cpu")
    assert list(policy.warm_up({}, most=3)) == []


NOT_NEEDED = (
    "torch._dynamo torch._inductor torch.onnx torch.distributed.tensor sympy transformers "
    "torchvision scipy pandas pyarrow av PIL wandb huggingface_hub"
)
"""Modules that take long to import and that the first action of a checkpoint does not need."""


def test_the_first_action_of_a_checkpoint_loads_neither_torchs_compiler_nor_other_libraries(
    tmp_path,
):
    folder = write_small(small_act(), tmp_path / "act")
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from small_policies import OFFERED, batch_of, episode, fresh_queries\n"
        "from proctor.policies.lerobot.checkpoint.checkpoint import load_policy\n"
        f"policy = load_policy({str(folder)!r}, None, {{'device': 'cpu'}}, OFFERED)\n"
        "policy.act(batch_of(policy, fresh_queries(policy, [episode(0)])))\n"
        f"loaded = set({NOT_NEEDED.split()!r}) & sys.modules.keys()\n"
        "assert not loaded, loaded\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_policies_without_a_network_are_evaluated_without_torch(tmp_path):
    flags = ["--env.type=fake", "--eval.n_episodes=1", "--eval.use_async_envs=false"]
    command = ["eval", "--policy.type=expert", *flags, f"--output_dir={tmp_path / 'run'}"]
    code = (
        "import sys; import proctor.cli\n"
        "from proctor.policies.remote import config, policy, server_pool\n"
        f"assert proctor.cli.main({command!r}) == 0\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
