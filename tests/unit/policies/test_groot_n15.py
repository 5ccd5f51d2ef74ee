"""GR00T N1.5 from its files: LeRobot 0.5.1's checkpoints and NVIDIA's folders."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("tokenizers", reason="words need a tokenizer: pip install 'proctor[vla]'")
from tests.unit.policies import tiny_groot_n15 as tiny
from tests.unit.policies.tiny_groot_n15 import ACTIONS, CHUNK, FRONT, STATES, WRIST

from proctor.errors import UsageError
from proctor.features import ACTION, LANGUAGE_TOKENS, STATE
from proctor.policies.base import Batch, Query
from proctor.policies.groot.config import GrootN15Config
from proctor.policies.groot.network.network import NOISE, TIME, GrootN15
from proctor.policies.groot.steps.steps import ACTION_MASK
from proctor.policies.lerobot.checkpoint.checkpoint import read_checkpoint
from proctor.policies.lerobot.checkpoint.saving import write_checkpoint
from proctor.policies.lerobot.checkpoint.weights import SkipWeightInit
from proctor.policies.lerobot.config.config import decode_config
from proctor.policies.runtime.chunk_policy import ChunkPolicy, LoadedCheckpoint
from proctor.types import EpisodeSpec, Task

pytestmark = pytest.mark.vla
WORDS = ["open it", "pick up the red cube", "push the puck to the goal"]
KEYS = Path(__file__).parents[2] / "golden/data/keys_groot_n15.txt.gz"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_base(tmp_path_factory.mktemp("groot_n15"))


@pytest.fixture(scope="module")
def checkpoint(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_lerobot_checkpoint(base, tmp_path_factory.mktemp("c") / "checkpoint")


def seen(states: int = STATES) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    images = {k: rng.integers(0, 256, (3, 20, 24, 3)).astype(np.uint8) for k in (FRONT, WRIST)}
    return images | {STATE: rng.normal(size=(3, states)).astype(np.float32)}


def act(folder: Path, rows: list[int], states: int = STATES, **flags: Any) -> np.ndarray:
    policy = ChunkPolicy(read_checkpoint(folder, flags), "cpu")
    tasks = [Task("test", n, f"task-{n}", words, 50, 10) for n, words in enumerate(WORDS)]
    queries = [Query(EpisodeSpec(tasks[n], n, 0), 0, None) for n in rows]
    batch = {key: values[rows][:, None] for key, values in seen(states).items()}
    return policy.act(Batch(queries, batch))


def test_at_true_size_all_tensors_are_lerobots_in_its_order() -> None:
    text = gzip.decompress(KEYS.read_bytes()).decode()
    lines = [line.split(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    raw = tiny.config_json(Path()) | {"type": "groot_n15", "base_model_path": None}
    raw |= {"max_state_dim": 64, "max_action_dim": 32}
    with SkipWeightInit():
        network = GrootN15(decode_config(raw, GrootN15Config, "test"))
    ours = [(name, list(value.shape)) for name, value in network.state_dict().items()]

    assert ours == [(name, json.loads(shape)) for name, shape in lines]
    assert sum(p.numel() for p in network.parameters()) == 2_413_522_880


def test_a_checkpoint_of_lerobot_0_5_is_read_as_n15_and_acts(checkpoint: Path) -> None:
    parts = read_checkpoint(checkpoint)
    assert isinstance(parts.config, GrootN15Config)
    chunk = act(checkpoint, [0, 1, 2])

    assert chunk.shape == (3, CHUNK, ACTIONS)
    assert np.isfinite(chunk).all()
    assert (chunk[..., 2] == 2.0).all()  # minimum and maximum are equal


def test_each_row_has_its_own_instruction_and_not_its_neighbours(checkpoint: Path) -> None:
    together = act(checkpoint, [0, 1, 2])
    for row in range(3):
        np.testing.assert_allclose(act(checkpoint, [row])[0], together[row], atol=1e-5)
    told = read_checkpoint(checkpoint).preprocessor.encode_prompt(WORDS, {})
    assert len({row.tobytes() for row in told[LANGUAGE_TOKENS]}) == 3


def prepared(parts: LoadedCheckpoint, rows: list[int]) -> dict[str, torch.Tensor]:
    """Return the network's inputs of some rows as one batch."""
    given = {key: torch.from_numpy(values[rows]) for key, values in seen().items()}
    images = {key: given[key].permute(0, 3, 1, 2) / 255 for key in (FRONT, WRIST)}
    words = [WORDS[row] for row in rows]
    told = {k: torch.from_numpy(v) for k, v in parts.preprocessor.encode_prompt(words, {}).items()}
    return {**images, STATE: given[STATE], **told}


def first_chunk(folder: Path, rows: list[int], **flags: Any) -> torch.Tensor:
    """Return the first row's chunk of a batch."""
    parts = read_checkpoint(folder, flags)
    network = parts.network.eval()
    network.check_preprocessor(parts.preprocessor.steps)
    noise = {NOISE: torch.ones(len(rows), CHUNK, 5)}
    with torch.inference_mode():
        return network.chunk(parts.preprocessor(prepared(parts, rows)), noise)[0]


def test_only_with_upstream_padding_a_row_depends_on_its_batch(checkpoint: Path) -> None:
    alone = first_chunk(checkpoint, [0])
    theirs = first_chunk(checkpoint, [0, 2], upstream_padding="true")

    torch.testing.assert_close(first_chunk(checkpoint, [0, 2]), alone, rtol=0, atol=1e-5)
    upstream = first_chunk(checkpoint, [0], upstream_padding="true")
    torch.testing.assert_close(upstream, alone, rtol=0, atol=1e-5)
    assert (theirs - alone).abs().max() > 1e-4


def test_what_we_write_is_lerobots_type_and_acts_the_same(checkpoint: Path, tmp_path: Path) -> None:
    write_checkpoint(read_checkpoint(checkpoint), tmp_path / "again")
    stated = json.loads((tmp_path / "again/config.json").read_text())

    assert stated["type"] == "groot"
    for name in ("policy_preprocessor.json", "policy_postprocessor.json"):
        told = [json.loads((f / name).read_text()) for f in (checkpoint, tmp_path / "again")]
        for one, other in zip(told[0]["steps"], told[1]["steps"], strict=True):
            assert one["registry_name"] == other["registry_name"]
            assert one["config"] == other["config"]
    np.testing.assert_array_equal(act(checkpoint, [1]), act(tmp_path / "again", [1]))


def test_nvidias_folder_acts_with_its_own_statistics(base: Path) -> None:
    parts = read_checkpoint(base)
    chunk = act(base, [0, 1], states=3, use_bf16="false")

    assert parts.config.embodiment_tag == tiny.TAG
    assert parts.config.base_model_path == str(base)
    assert chunk.shape == (2, CHUNK, 3)


def test_nvidias_folder_names_the_embodiments_to_choose_from(base: Path, tmp_path: Path) -> None:
    folder = tmp_path / "base"
    (folder / "experiment_cfg").mkdir(parents=True)
    (folder / "config.json").write_text((base / "config.json").read_text())
    for known, flags, code in (
        ({}, {}, "policy.missing-statistics"),
        ({"a": 1, "b": 2}, {}, "policy.missing-embodiment"),
        ({"a": 1, "b": 2}, {"embodiment_tag": "c"}, "policy.unknown-embodiment"),
        ({"a": {"modalities": {}}}, {}, "policy.missing-statistics"),
        ({"a": rotation()}, {}, "policy.unsupported-statistics"),
    ):
        (folder / "experiment_cfg/metadata.json").write_text(json.dumps(known))
        with pytest.raises(UsageError) as caught:
            read_checkpoint(folder, flags)
        assert caught.value.code == code, known


def rotation() -> dict[str, Any]:
    found = tiny.metadata()
    found["modalities"]["state"]["single_arm"]["rotation_type"] = "quaternion"
    return found


def test_a_short_chunk_is_filled_with_its_last_action_and_counts(checkpoint: Path) -> None:
    parts = read_checkpoint(checkpoint)
    actions = torch.tensor([[[0.0, 5.0, 2.0], [1.0, 0.0, 2.0]]])
    packed = parts.preprocessor.steps[2]({ACTION: actions, STATE: torch.full((1, STATES), 9.0)})

    assert packed[ACTION].shape == (1, CHUNK, 5)
    expected = [[0.0, 1.0, 0.0, 0.0, 0.0], *[[1.0, -1.0, 0.0, 0.0, 0.0]] * (CHUNK - 1)]
    assert packed[ACTION][0].tolist() == expected
    assert packed[ACTION_MASK][0].tolist() == [[1.0, 1.0, 1.0, 0.0, 0.0]] * CHUNK
    assert packed[STATE][0].tolist() == [4.0] * STATES + [0.0] * (7 - STATES)  # not clamped


def test_only_the_action_head_is_trained_by_default(checkpoint: Path) -> None:
    parts = read_checkpoint(checkpoint)
    network = parts.network
    network.check_preprocessor(parts.preprocessor.steps)
    network.train()
    batch = prepared(parts, [0, 1, 2])
    batch[ACTION] = torch.zeros(3, CHUNK, ACTIONS)
    draws = {NOISE: torch.ones(3, CHUNK, 5), TIME: torch.full((3,), 0.5)}
    loss, _ = network.loss(parts.preprocessor(batch), draws)
    loss.backward()

    trained = {n for n, p in network.named_parameters() if p.grad is not None}
    assert trained
    assert all(name.startswith("action_head.") for name in trained)
    assert "action_head.future_tokens.weight" in trained
    group = network.parameter_groups()[0]["params"]
    assert {id(p) for p in group} == {id(p) for n, p in network.named_parameters() if n in trained}
