"""pi0, pi0.5 and pi0-FAST: rows do not depend on their batch, invalid configs, checkpoint files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from small_policies import ACTION, INPUTS, batch_of, episode, fresh_queries
from tests.conftest import digests
from tests.refusals import refuses
from tests.tiny_pi import N_WORDS, RUNS, tiny_sizes

from proctor import plugins
from proctor.benchmarks.base import interface_of
from proctor.errors import UsageError
from proctor.evaluation.run import Evaluation
from proctor.features import IMAGES, STATE
from proctor.fingerprint import ConfigUse
from proctor.policies.lerobot.checkpoint.checkpoint import instantiate_network, read_checkpoint
from proctor.policies.lerobot.checkpoint.saving import write_checkpoint
from proctor.policies.lerobot.config.config import CheckpointConfig, decode_config, encode_config
from proctor.policies.lerobot.config.families import family
from proctor.policies.lerobot.processors.pipelines import default_pipelines
from proctor.policies.runtime.chunk_policy import ChunkPolicy, LoadedCheckpoint
from proctor.types import EpisodeSpec

pytestmark = pytest.mark.vla
KINDS = ["pi0", "pi05", "pi0_fast"]
SMALL: dict[str, Any] = {
    "chunk_size": 6, "n_action_steps": 3, "max_state_dim": 6, "max_action_dim": 4,
    "image_resolution": [28, 28], "tokenizer_max_length": 40,
}  # fmt: skip
OWN: dict[str, dict[str, Any]] = {
    "pi0": {"num_inference_steps": 2},
    "pi05": {"num_inference_steps": 2},
    "pi0_fast": {
        "max_decoding_steps": 6,
        "validate_action_token_prefix": False,
        "action_tokenizer_name": str(RUNS / "codes"),
    },
}


@pytest.fixture(autouse=True, scope="module")
def tiny() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with tiny_sizes(vocabulary=N_WORDS):
        yield
    torch.set_num_threads(before)


def small(kind: str, **changes: Any) -> CheckpointConfig:
    plugin = family(kind)
    assert plugin is not None
    words = {"tokenizer": str(RUNS / "words")}
    seen = {"input_features": INPUTS, "output_features": ACTION}
    made: Any = plugin.config(**{**seen, **SMALL, **OWN[kind], **words, **changes})
    return made


def parts_of(kind: str, **changes: Any) -> LoadedCheckpoint:
    plugin, config = family(kind), small(kind, **changes)
    assert plugin is not None
    torch.manual_seed(0)
    network = instantiate_network(plugin, config)
    for value in network.parameters():  # biases and norms say something, too
        value.data += 0.05 * torch.randn_like(value)
    return LoadedCheckpoint(config, network, "model.", *default_pipelines(config, {}, {}))


@pytest.mark.parametrize("kind", [*KINDS, "pi0_fast, drawn"])
def test_batches_of_1_3_and_8_give_the_same_bits(kind: str) -> None:
    name, _, drawn = kind.partition(",")
    policy = ChunkPolicy(parts_of(name, **({"temperature": 0.9} if drawn else {})), "cpu")
    specs = told_at_length([episode(index) for index in range(8)])
    alone = [policy.act(batch_of(policy, fresh_queries(policy, [spec]))) for spec in specs]
    for size in (3, 8):
        together = [
            policy.act(batch_of(policy, fresh_queries(policy, specs[i : i + size])))
            for i in range(0, len(specs), size)
        ]
        np.testing.assert_array_equal(np.concatenate(together), np.concatenate(alone))
    if name != "pi0_fast" or drawn:
        assert len({chunk.tobytes() for chunk in alone}) > 1
    if name != "pi0_fast":
        policy.network.skips_padding = False
        padded = policy.act(batch_of(policy, fresh_queries(policy, specs)))
        assert not np.array_equal(padded, np.concatenate(alone)), "nothing was cut"
        np.testing.assert_allclose(padded, np.concatenate(alone), rtol=1e-5, atol=1e-5)


def told_at_length(specs: list[EpisodeSpec]) -> list[EpisodeSpec]:
    """Return episodes whose tasks are told in more and more words."""
    words = [" ".join(["ab"] * (1 + spec.index % 3)) for spec in specs]
    return [
        replace(s, task=replace(s.task, instruction=w)) for s, w in zip(specs, words, strict=True)
    ]


@torch.inference_mode()
def test_rows_that_are_said_together_end_by_themselves() -> None:
    """A batch of one, as on a CPU, is not all: a GPU says several rows at once."""
    parts = parts_of("pi0_fast", max_decoding_steps=5)
    policy = ChunkPolicy(parts, "cpu")
    batch = batch_of(policy, fresh_queries(policy, [episode(index) for index in range(3)]))
    words = parts.instruction_encoder(ConfigUse.EVALUATION)([" ".join("ab")] * 3, newest(batch))
    inputs = {key: torch.from_numpy(value) for key, value in words.items()}
    inputs |= {
        "observation.image": torch.rand(3, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    }
    network: Any = policy.network
    together = network.generate(inputs)
    for row in range(3):
        alone = network.generate({key: value[row : row + 1] for key, value in inputs.items()})
        assert torch.equal(alone[0], together[row])


def newest(batch: Any) -> dict[str, torch.Tensor]:
    return {STATE: torch.from_numpy(batch.observations[STATE][:, -1]).float()}


@torch.inference_mode()
@pytest.mark.parametrize("kind", ["pi0", "pi05"])
def test_padding_of_words_changes_nothing(kind: str) -> None:
    network: Any = parts_of(kind).network.eval()
    drawn = torch.Generator().manual_seed(1)
    inputs = {
        "observation.image": torch.rand(2, 3, 64, 64, generator=drawn),
        STATE: torch.randn(2, 4, generator=drawn),
    }
    noise = {"noise": torch.randn(2, 6, 4, generator=drawn)}
    found = []
    for length in (5, 16):
        tokens = torch.full((2, length), 7)
        tokens[:, :5] = torch.tensor([2, 30, 40, 50, 60])
        heard = (torch.arange(length) < 5).expand(2, -1)
        words = {
            "observation.language.tokens": tokens, "observation.language.attention_mask": heard
        }  # fmt: skip
        found.append(network.chunk({**inputs, **words}, noise))
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Those that fit the fake benchmark, with random weights."""
    made: dict[str, str] = {}

    def checkpoint(kind: str) -> str:
        if kind not in made:
            benchmark, plugin = plugins.find_benchmark("fake"), family(kind)
            assert plugin is not None
            interface = interface_of(benchmark.make(benchmark.config(image_size=28)))
            words = {"tokenizer": str(RUNS / "words")}
            policy: Any = plugin.make(plugin.config(**SMALL, **OWN[kind], **words), interface)
            folder = tmp_path_factory.mktemp("pi") / kind
            parts = parts_for(kind, policy.parts)
            write_checkpoint(parts, folder)
            made[kind] = str(folder)
        return made[kind]

    return checkpoint


def parts_for(kind: str, parts: LoadedCheckpoint) -> LoadedCheckpoint:
    """Return parts with a whole network: the one of a policy has no heads any more."""
    plugin = family(kind)
    assert plugin is not None
    torch.manual_seed(1)
    network = instantiate_network(plugin, parts.config)
    return LoadedCheckpoint(
        parts.config, network, "model.", parts.preprocessor, parts.postprocessor
    )


@pytest.mark.parametrize("kind", KINDS)
def test_load_scheduler_and_resume_change_no_episode(
    run: Callable[..., Evaluation], checkpoints: Callable[[str], str], kind: str
) -> None:
    def play(**flags: Any) -> Evaluation:
        settings = {
            "policy__type": "pretrained",
            "policy__path": checkpoints(kind),
            "env__image_size": 28,
            "env__episode_length": 5,
            "env__endless": True,
            "eval__n_episodes": 8,
            "eval__use_async_envs": False,
        }
        return run(**{**settings, **flags})

    alone = play(eval__batch_size=1)
    for size in (3, 8):
        assert digests(play(eval__batch_size=size)) == digests(alone)
    assert digests(play(eval__batch_size=3, eval__scheduler="lockstep")) == digests(alone)
    some = play(eval__episodes=[1])
    assert digests(play(output_dir=str(some.path), resume=True)) == digests(alone)
    if kind == "pi0":
        led = {"policy__rtc_config": "{execution_horizon: 4}", "eval__latency_steps": 1}
        late = play(eval__batch_size=1, **led)
        assert digests(play(eval__batch_size=3, **led)) == digests(late)
        free = play(eval__batch_size=1, eval__latency_steps=1)
        assert digests(free) != digests(late), "the flag must do something"


def rewritten(folder: str, to: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Path:
    shutil.copytree(folder, to)
    save_file(change(load_file(to / "model.safetensors")), to / "model.safetensors")
    return to


TABLE = "model.paligemma_with_expert.paligemma.model.language_model.embed_tokens.weight"
HEAD = "model.paligemma_with_expert.paligemma.lm_head.weight"


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_with_the_head_alone_has_its_table_of_words_from_it(
    checkpoints: Callable[[str], str], tmp_path: Path, kind: str
) -> None:
    def published(tensors: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in tensors.items() if key != TABLE}

    folder = rewritten(checkpoints(kind), tmp_path / kind, published)
    network: Any = read_checkpoint(folder).network
    head = load_file(folder / "model.safetensors")[HEAD]
    assert torch.equal(network.vlm.language.embed_tokens.weight, head)
    network.begin_training()
    network.vlm.language.embed_tokens.weight.data.zero_()
    assert torch.equal(network.vlm.lm_head.weight, head), "learnt apart, as in LeRobot"


def test_names_of_openpi_are_read_and_heads_that_nothing_uses_may_be_missing(
    checkpoints: Callable[[str], str], tmp_path: Path
) -> None:
    def openpi(tensors: dict[str, Any]) -> dict[str, Any]:
        plain = {key.removeprefix("model."): value for key, value in tensors.items()}
        plain = {key.replace("action_time_mlp", "time_mlp"): v for key, v in plain.items()}
        return {key: v for key, v in plain.items() if "gemma_expert.lm_head" not in key}

    folder = rewritten(checkpoints("pi0"), tmp_path / "openpi", openpi)
    ours, theirs = (read_checkpoint(Path(f)).network for f in (checkpoints("pi0"), folder))
    other = theirs.state_dict()
    for name, value in ours.state_dict().items():
        if "gemma_expert.lm_head" not in name:
            assert torch.equal(value, other[name])


def test_matrices_are_held_as_asked_and_all_else_in_float32() -> None:
    policy = ChunkPolicy(parts_of("pi05", dtype="bfloat16"), "cpu")
    halved = {n for n, p in policy.network.named_parameters() if p.dtype is torch.bfloat16}
    assert halved
    assert all(".self_attn." in n or ".mlp." in n or "embed_tokens" in n for n in halved)
    assert not [n for n in halved if "vision" in n or "norm" in n]
    assert not [n for n, _ in policy.network.named_parameters() if "lm_head" in n], "unused"
    assert policy.dtype is torch.float32


def test_a_camera_that_lerobot_calls_empty_is_not_asked_for() -> None:
    raw = json.loads(encode_config(small("pi0", empty_cameras=1), "0.6"))
    raw["input_features"][f"{IMAGES}empty_camera_0"] = {"type": "VISUAL", "shape": [3, 28, 28]}
    config = decode_config(raw, type(small("pi0")), "config.json")
    assert config.cameras == ["observation.image"]


@pytest.mark.parametrize(
    ("kind", "changes", "code"),
    [
        ("pi0", {"n_action_steps": 7}, "policy.out-of-range"),
        ("pi0", {"paligemma_variant": "x"}, "policy.unknown-choice"),
        ("pi0", {"dtype": "float16"}, "policy.unsupported-dtype"),
        ("pi05", {"max_state_dim": 2}, "policy.state-size-mismatch"),
        ("pi05", {"max_action_dim": 2}, "policy.action-size-mismatch"),
        ("pi0", {"image_resolution": [28]}, "policy.invalid-shape"),
        ("pi0", {"min_period": 9.0}, "policy.out-of-range"),
        ("pi0_fast", {"image_resolution": [56, 56]}, "policy.invalid-shape"),
        ("pi0_fast", {"rtc_config": {}}, "policy.conflict"),
        ("pi05", {"rtc_config": {"mode": "x"}}, "policy.invalid-value"),
        ("pi0_fast", {"temperature": -1.0}, "policy.out-of-range"),
        ("pi0_fast", {"max_decoding_steps": 10**9}, "policy.out-of-range"),
    ],
    ids=str,
)
def test_invalid_configs_are_refused_in_one_line(kind: str, changes: Any, code: str) -> None:
    with refuses(UsageError, code) as refused:
        small(kind, **changes).validate()
    assert next(iter(changes)) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_config_without_camera_or_with_a_history_is_refused() -> None:
    with refuses(UsageError, "policy.missing-input"):
        small("pi0", input_features={STATE: INPUTS[STATE]}).validate()
    with refuses(UsageError, "policy.unsupported-field") as refused:
        small("pi05", unknown={"use_visual_memory": True}).validate()
    assert "use_visual_memory" in str(refused.value)


def test_pi0_fast_without_a_tokenizer_step_is_refused() -> None:
    parts = parts_of("pi0_fast")
    steps = [s for s in parts.preprocessor.steps if s.registry_name != "tokenizer_processor"]
    deaf = replace(parts, preprocessor=replace(parts.preprocessor, steps=tuple(steps)))
    with refuses(UsageError, "checkpoint.missing-tokenizer"):
        ChunkPolicy(deaf, "cpu")


@pytest.mark.parametrize(
    ("scale", "code"),
    [
        (None, "tokenizer.not-found"),
        ("{", "tokenizer.unreadable"),
        ('{"scale": 0, "min_token": 0}', "tokenizer.unreadable"),
        ('{"scale": 1, "min_token": -1000000000}', "tokenizer.unreadable"),
    ],
    ids=["none", "torn", "no scale", "far"],
)
def test_a_hostile_action_tokenizer_is_refused_in_one_line(
    tmp_path: Path, scale: str | None, code: str
) -> None:
    shutil.copytree(RUNS / "codes", tmp_path / "codes")
    (tmp_path / "codes" / "processor_config.json").unlink()
    if scale is not None:
        (tmp_path / "codes" / "processor_config.json").write_text(scale)
    config = small("pi0_fast", action_tokenizer_name=str(tmp_path / "codes"))
    with refuses(UsageError, code) as refused:
        default_pipelines(config, {}, {})
    assert "processor_config.json" in str(refused.value)
    assert "\n" not in str(refused.value)
