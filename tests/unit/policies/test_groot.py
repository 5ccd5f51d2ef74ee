"""GR00T: NVIDIA's folders, settings that are refused, prompts, real-time chunking, int8 weights."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="policies need torch: pip install 'proctor[torch]'")
pytest.importorskip("tokenizers", reason="words need a tokenizer: pip install 'proctor[vla]'")
sys.path.insert(0, str(Path(__file__).parents[2] / "golden"))
from groot_folders import ACTIONS, STATES, write_base  # noqa: E402

from proctor.errors import UsageError  # noqa: E402
from proctor.features import (  # noqa: E402
    ACTION,
    STATE,
    ActionSpec,
    Feature,
    FeatureKind,
    Interface,
)
from proctor.policies.base import Batch, Query  # noqa: E402
from proctor.policies.blocks.poses import compose_poses, relative_poses  # noqa: E402
from proctor.policies.groot.config import GrootN17Config, make  # noqa: E402
from proctor.policies.groot.network.network import strengths  # noqa: E402
from proctor.policies.groot.steps.chat import read_prompt  # noqa: E402
from proctor.policies.groot.steps.decode_steps import ActionDecode  # noqa: E402
from proctor.policies.groot.steps.encode_step import CROP, VlmEncode  # noqa: E402
from proctor.policies.groot.steps.images import PatchGeometry  # noqa: E402
from proctor.policies.groot.steps.steps import VIEW, PackInputs  # noqa: E402
from proctor.policies.lerobot.checkpoint.checkpoint import load_policy  # noqa: E402
from proctor.policies.lerobot.tokenizer.tokenizer import TextTokenizer, Tokenizers  # noqa: E402
from proctor.policies.runtime import quantized  # noqa: E402
from proctor.types import EpisodeSpec, Task  # noqa: E402

pytestmark = pytest.mark.vla
CAMERAS = ("observation.images.top", "observation.images.wrist_image")


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def whole_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_base(tmp_path_factory.mktemp("groot"))


@pytest.fixture
def base(whole_base: Path, tmp_path: Path) -> Path:
    """Return a copy of the base model whose JSON files may be changed."""
    folder = tmp_path / "base"
    folder.mkdir()
    for file in whole_base.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def interface() -> Interface:
    image = Feature(FeatureKind.VISUAL, (40, 48, 3), "uint8")
    features = dict.fromkeys(CAMERAS, image)
    features[STATE] = Feature(FeatureKind.STATE, (STATES,), "float32")
    return Interface("here", features, ActionSpec(ACTIONS))


def flags(base: Path, **more):
    return {"tokenizer": str(words(base)), "device": "cpu", "use_bf16": False, **more}


def words(base: Path) -> Path:
    stated: str = json.loads((base / "config.json").read_text())["model_name"]
    return Path(stated)


def change(file: Path, **entries) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | entries))


def refused(base: Path, code: str, **more) -> str:
    with pytest.raises(UsageError) as caught:
        load_policy(str(base), None, flags(base, **more), interface())
    assert caught.value.code == code
    assert "\n" not in str(caught.value)
    return str(caught.value)


def with_two_robots(base: Path) -> None:
    stats = json.loads((base / "statistics.json").read_text())
    change(base / "statistics.json", other=stats["arm"])
    told = json.loads((base / "processor_config.json").read_text())["processor_kwargs"]
    told["modality_configs"]["other"] = told["modality_configs"]["arm"]
    change(base / "processor_config.json", processor_kwargs=told)


def test_a_folder_for_several_robots_needs_an_embodiment_and_lists_them(base):
    with_two_robots(base)
    said = refused(base, "policy.missing-embodiment")
    assert "arm, other" in said
    assert "--policy.embodiment_tag" in said
    said = refused(base, "policy.unknown-embodiment", embodiment_tag="othr")
    assert "arm, other" in said
    policy = load_policy(str(base), None, flags(base, embodiment_tag="other"), interface())
    assert policy.parts.config.embodiment_tag == "other"


def test_a_folder_without_statistics_says_so(base):
    (base / "statistics.json").unlink()
    assert "statistics.json" in refused(base, "policy.missing-statistics")


def test_a_missing_tokenizer_is_named(base, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "Cosmos-Reason2-2B" in refused(base, "tokenizer.not-found", tokenizer=None)


def test_statistics_of_another_size_or_without_numbers_are_refused(base):
    stats = json.loads((base / "statistics.json").read_text())
    stats["arm"]["action"]["gripper"]["q01"] = [1.0, 2.0]
    change(base / "statistics.json", **stats)
    refused(base, "stats.shape-mismatch")
    del stats["arm"]["action"]["gripper"]["q01"]
    change(base / "statistics.json", **stats)
    refused(base, "stats.missing")


def test_another_models_sizes_are_refused(base):
    change(base / "config.json", input_embedding_dim=10)
    refused(base, "policy.wrong-backbone")


def test_the_base_model_that_a_flag_names_is_used(base):
    config = GrootN17Config(base_model_path=str(base), **flags(base))
    policy = make(config, interface())
    assert policy.protocol()["weights"] == "from the files"
    assert policy.spec.n_action_steps == 5


def acted(policy, state_of=None) -> np.ndarray:
    """Return the chunk of one query, and keep the episode's state in ``state_of``."""
    drawn = np.random.default_rng(0)
    seen = {key: drawn.integers(0, 256, (1, 1, 40, 48, 3), dtype=np.uint8) for key in CAMERAS}
    seen[STATE] = drawn.normal(size=(1, 1, STATES)).astype(np.float32)
    spec = EpisodeSpec(Task("s", 0, "t", "open it", 9, 9), 0, 0)
    state = policy.new_episode(spec) if state_of is None else state_of
    return policy.act(Batch([Query(spec, 0, state)], seen))


def absolute(base: Path) -> None:
    told = json.loads((base / "processor_config.json").read_text())["processor_kwargs"]
    change(base / "processor_config.json", processor_kwargs=told | {"use_relative_action": False})


def test_with_real_time_chunking_a_chunk_starts_as_the_old_one_ended(base):
    absolute(base)
    rtc = {"enabled": True, "execution_horizon": 3}
    policy = load_policy(
        str(base), None, flags(base, rtc_config=rtc, n_action_steps=2, latency_steps=1), interface()
    )
    state = policy.new_episode(None)
    first = acted(policy, state)
    rest = state["rtc: left over"].copy()
    second = acted(policy, state)
    plain = acted(load_policy(str(base), None, flags(base, n_action_steps=2), interface()))
    np.testing.assert_allclose(first, plain, atol=1e-6)
    assert np.abs(second - first).max() > 1e-3
    frozen = policy.postprocessor({"action": torch.from_numpy(rest[None, 1:2])})["action"]
    np.testing.assert_allclose(second[:, 0], frozen[:, 0].numpy(), atol=1e-5)


def test_the_velocity_grows_from_the_frozen_actions_to_full_strength():
    found = strengths(5, 2, 6.0)
    assert found[:2] == [0.0, 0.0]
    assert found[2:] == sorted(found[2:])
    assert 0 < found[2] < found[-1] < 1


def test_int8_weights_act_nearly_as_before(base, monkeypatch):
    monkeypatch.setattr(quantized, "_FEWEST", 64)
    usual = acted(load_policy(str(base), None, flags(base), interface()))
    small = load_policy(str(base), None, flags(base, quantize="int8"), interface())
    assert any(isinstance(m, quantized.Int8Linear) for m in small.network.modules())
    apart = np.abs(acted(small) - usual)
    assert 0 < apart.mean() < 0.1


def test_bfloat16_autocast_acts_nearly_as_float32(base):
    usual = acted(load_policy(str(base), None, flags(base), interface()))
    rough = acted(load_policy(str(base), None, flags(base, use_bf16=True), interface()))
    assert 0 < np.abs(rough - usual).mean() < 0.1


def test_a_templates_system_message_is_part_of_the_prompt(base):
    files = Tokenizers(given=str(words(base))).find(None).files
    template = "{{ '<|im_start|>system\\nBe kind.<|im_end|>\\n' }}<|im_start|><|image_pad|>"
    told = json.dumps({"pad_token": "<|endoftext|>", "chat_template": template}).encode()
    plain = read_prompt(TextTokenizer(files, "here"))
    prompt = read_prompt(TextTokenizer(files | {"tokenizer_config.json": told}, "here"))
    assert prompt.before.startswith("<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\n")
    assert len(prompt.prefix) > len(plain.prefix)
    assert prompt.encode("open it")[-4:] == plain.encode("open it")[-4:]
    other = json.dumps({"pad_token": "<|endoftext|>", "chat_template": "[INST]"}).encode()
    with pytest.raises(UsageError) as caught:
        read_prompt(TextTokenizer(files | {"tokenizer_config.json": other}, "here"))
    assert caught.value.code == "tokenizer.unsupported-template"


def test_image_sides_become_multiples_of_a_tokens_side():
    geometry = PatchGeometry(side=32, fewest=65_536, most=200_000)
    assert geometry.size(256, 256) == (256, 256)
    assert geometry.size(256, 340) == (256, 352)
    assert geometry.size(64, 64) == (256, 256)
    assert geometry.size(1000, 500) == (608, 288)


def test_only_checkpoints_with_albumentations_crop_at_random_in_training():
    usual = VlmEncode(image_target_size=[32, 32], image_crop_size=[28, 28])
    random = replace(usual, use_albumentations=True)
    assert usual.training_draws == {}
    assert replace(random, image_crop_size=None).training_draws == {}
    assert random.training_draws == {CROP: 2}
    image = torch.arange(3 * 40 * 40).reshape(1, 3, 40, 40) % 256 * 1.0
    views = {f"{VIEW}00": image.expand(2, -1, -1, -1), f"{VIEW}01": image.expand(2, -1, -1, -1)}
    found = random({**views, CROP: torch.tensor([[0.5, 0.5], [0.0, 1.0]])})
    assert CROP not in found
    first, second = found.values()
    assert torch.equal(first, second)
    centre = random(views)[f"{VIEW}00"]
    assert torch.equal(first[0], centre[0])
    assert not torch.equal(first[1], centre[1])


def test_relative_poses_are_packed_and_decoded_again():
    generator = torch.Generator().manual_seed(1)
    turn = torch.tensor([1.0, 0, 0, 0, 1, 0])
    state, actions = (
        torch.cat([torch.rand(*shape, 3, generator=generator),
                   turn + 0.3 * torch.rand(*shape, 6, generator=generator),
                   torch.rand(*shape, 1, generator=generator)], -1)
        for shape in ((4,), (4, 3))
    )  # fmt: skip
    exact = compose_poses(state[:, :9], actions[..., :9])  # its rotations have orthonormal rows
    actions = torch.cat([exact, actions[..., 9:]], -1)
    relative = relative_poses(state[:, :9], actions[..., :9])
    bounds = {"min": (relative.amin(0) - 0.1).tolist(), "max": (relative.amax(0) + 0.1).tolist()}
    flat = {"min": [-9.0] * 9, "max": [9.0] * 9}
    gripper = {"min": [0.0], "max": [1.0]}
    raw = {
        "state": {"eef": flat, "gripper": gripper},
        "action": {"eef": flat, "gripper": gripper},
        "relative_action": {"eef": bounds},
    }
    keys = {"modality_keys": ["eef", "gripper"]}
    pose = {"rep": "RELATIVE", "type": "EEF", "format": "XYZ_ROT6D", "state_key": None}
    other = {"rep": "ABSOLUTE", "type": "NON_EEF", "format": "DEFAULT", "state_key": None}
    modality = {"state": keys, "action": keys | {"action_configs": [pose, other]}}
    pack = PackInputs(action_horizon=4, valid_action_horizon=4, max_state_dim=12,
                      max_action_dim=12, raw_stats=raw, modality_config=modality)  # fmt: skip
    decode = ActionDecode(env_action_dim=10, raw_stats=raw, modality_config=modality,
                          use_relative_action=True)  # fmt: skip
    packed = pack({STATE: state, ACTION: actions})[ACTION]
    found = decode({STATE: state, ACTION: packed[:, :3]})[ACTION]
    np.testing.assert_allclose(found, actions, atol=1e-5)


def test_poses_compose_as_rigid_motions():
    turn = [0.0, 1.0, 0.0, -1.0, 0.0, 0.0]  # a quarter turn about z, as two rows
    reference = torch.tensor([[1.0, 2.0, 3.0, *turn]])
    relative = torch.tensor([[[1.0, 0.0, 0.0, *turn]]])
    absolute = compose_poses(reference, relative)
    np.testing.assert_allclose(absolute[0, 0], [1, 1, 3, -1, 0, 0, 0, -1, 0], atol=1e-6)
    np.testing.assert_allclose(relative_poses(reference, absolute), relative, atol=1e-6)
