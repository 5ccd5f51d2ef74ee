"""GR00T N1.5 beside LeRobot's own (0.5.1), from raw observations: tokens, images, chunks, training.

Needs LeRobot 0.5.1 with transformers and diffusers: set PROCTOR_LEROBOT_05_PYTHON to its python.
The tokenizer, the base model and the weights are made up; the chat format and the files' layout are
those of the assets that LeRobot 0.5.1 downloads.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="policies need torch: pip install 'proctor[torch]'")
pytest.importorskip("tokenizers", reason="words need a tokenizer: pip install 'proctor[vla]'")
import numpy as np  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from tests.unit.policies import tiny_groot_n15 as tiny  # noqa: E402
from tests.unit.policies.tiny_groot_n15 import ACTIONS, CHUNK, FRONT, STATES, WRIST  # noqa: E402

from proctor.features import ACTION, STATE  # noqa: E402
from proctor.policies.base import Batch, Query  # noqa: E402
from proctor.policies.groot.network.network import NOISE, TIME  # noqa: E402
from proctor.policies.lerobot.checkpoint.checkpoint import read_checkpoint  # noqa: E402
from proctor.policies.lerobot.config.presets import OptimizerSettings, ScheduleSettings  # noqa: E402
from proctor.policies.runtime.chunk_policy import ChunkPolicy  # noqa: E402
from proctor.training.optim.optimizers import (  # noqa: E402
    clip_gradients,
    make_optimizer,
    make_scheduler,
    param_groups,
    resolve,
)
from proctor.types import EpisodeSpec, Task  # noqa: E402

PYTHON = os.environ.get("PROCTOR_LEROBOT_05_PYTHON", "")
SIDE = Path(__file__).with_name("lerobot_groot_n15_side.py")
WORDS = ["open it", 'Pick up the "red" cube!', "push the puck to the goal, it's there"]
STEPS, ROWS = 5, 3
REPO = "lerobot/eagle2hg-processor-groot-n1p5"
pytestmark = [
    pytest.mark.vla,
    pytest.mark.skipif(
        not Path(PYTHON).is_file(),
        reason="LeRobot 0.5.1 with transformers not installed (set PROCTOR_LEROBOT_05_PYTHON)",
    ),
]
TEMPLATE = (
    "{% set image_count = namespace(value=0) %}{% for message in messages %}{% if loop.first and "
    "message['role'] != 'system' %}<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
    "{% endif %}<|im_start|>{{ message['role'] }}\n{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}{% set image_count.value = image_count.value + 1 %}"
    "<image-{{ image_count.value }}>{% elif 'text' in part %}{{ part['text'] }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% endif %}"
)


def write_assets(folder: Path) -> None:
    """Write what LeRobot 0.5.1 downloads, at the size of the tiny model."""
    from tokenizers import pre_tokenizers

    folder.mkdir(parents=True)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    token = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
             "special": True}  # fmt: skip
    auto = {
        "AutoImageProcessor": "image_processing_eagle2_5_vl_fast.Eagle25VLImageProcessorFast",
        "AutoProcessor": "processing_eagle2_5_vl.Eagle25VLProcessor",
    }
    vision = tiny.EAGLE["vision_config"] | {
        "model_type": "siglip_vision_model", "num_channels": 3, "layer_norm_eps": 1e-6,
        "hidden_act": "gelu_pytorch_tanh", "attention_dropout": 0,
    }  # fmt: skip
    text = tiny.EAGLE["text_config"] | {
        "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True, "attention_bias": False, "hidden_act": "silu",
        "max_position_embeddings": 512, "use_cache": False,
    }  # fmt: skip
    files: dict[str, Any] = {
        "vocab.json": {text: at for at, text in enumerate([*tiny.SPECIALS, *letters])},
        "added_tokens.json": {name: at for at, name in enumerate(tiny.SPECIALS)},
        "special_tokens_map.json": {"pad_token": "<|endoftext|>", "eos_token": "<|im_end|>"},
        "generation_config.json": {},
        "chat_template.json": {"chat_template": TEMPLATE},
        "tokenizer_config.json": {
            "added_tokens_decoder": {
                str(at): token | {"content": name} for at, name in enumerate(tiny.SPECIALS)
            },
            "add_prefix_space": False, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>",
            "tokenizer_class": "Qwen2Tokenizer", "unk_token": None, "model_max_length": 16384,
            "processor_class": "Eagle25VLProcessor",
        },
        "preprocessor_config.json": {
            "auto_map": auto, "do_convert_rgb": True, "do_normalize": True, "do_rescale": True,
            "do_resize": False, "do_pad": False, "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
            "image_processor_type": "Eagle25VLImageProcessorFast", "max_dynamic_tiles": 12,
            "min_dynamic_tiles": 1, "pad_during_tiling": False, "resample": 3,
            "rescale_factor": 1 / 255, "size": {"height": 28, "width": 28}, "tokens_per_tile": 4,
            "processor_class": "Eagle25VLProcessor", "use_thumbnail": True,
            "default_to_square": False, "return_tensors": "pt",
        },
        "processor_config.json": {
            "auto_map": auto, "image_end_token": "</img>", "image_start_token": "<img>",
            "image_placeholder": "image", "image_token": "<IMG_CONTEXT>", "tokens_per_tile": 4,
            "processor_class": "Eagle25VLProcessor", "video_placeholder": "video",
            "video_token": "<IMG_CONTEXT>", "vision_feature_select_strategy": None,
        },
        "config.json": {
            "architectures": ["Eagle25VLForConditionalGeneration"],
            "auto_map": {
                "AutoConfig": "configuration_eagle2_5_vl.Eagle25VLConfig",
                "AutoModel": "modeling_eagle2_5_vl.Eagle25VLForConditionalGeneration",
            },
            "model_type": "eagle_2_5_vl", "downsample_ratio": 0.5, "force_image_size": 28,
            "image_token_index": tiny.EAGLE["image_token_index"], "mlp_connector_layers": 1,
            "select_layer": -1, "template": "qwen3-chat", "use_pixel_shuffle": False,
            "_attn_implementation": "eager", "text_config": text, "vision_config": vision,
        },
    }  # fmt: skip
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    (folder / "merges.txt").write_text("#version: 0.2\n")


def given_tensors() -> dict[str, Any]:
    """Return observations, noise, times and actions for both sides."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (2, ROWS, 20, 24, 3)).astype(np.uint8)
    noise = {f"noise {step}": rng.normal(size=(ROWS, CHUNK, 5)) for step in range(STEPS)}
    times = {f"time {step}": rng.uniform(0.01, 0.99, ROWS) for step in range(STEPS)}
    actions = {f"action {step}": rng.normal(size=(ROWS, CHUNK, ACTIONS)) for step in range(STEPS)}
    numbers = {
        STATE: rng.normal(size=(ROWS, STATES)), "noise": rng.normal(size=(ROWS, CHUNK, 5)),
        **noise, **times, **actions,
    }  # fmt: skip
    made = {key: torch.from_numpy(value).float() for key, value in numbers.items()}
    for key, image in zip((FRONT, WRIST), images, strict=True):
        made[key] = torch.from_numpy(image).permute(0, 3, 1, 2).float() / 255
    return made


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a checkpoint and what LeRobot 0.5.1 does with it."""
    folder = tmp_path_factory.mktemp("both")
    base = tiny.write_base(folder / "model")
    stated = json.loads((base / "config.json").read_text())
    stated |= {"action_horizon": CHUNK, "action_dim": 5, "compute_dtype": "float32"}
    head = stated["action_head_cfg"]
    head |= {"add_pos_embed": True, "use_vlln": True, "num_inference_timesteps": 4}
    blocks = {"final_dropout": True, "positional_embeddings": None}
    head["vl_self_attention_cfg"] |= blocks
    head["diffusion_model_cfg"] |= blocks | {
        "cross_attention_dim": head["backbone_embedding_dim"],
        "interleave_self_attention": True,
        "norm_type": "ada_norm",
    }
    (base / "config.json").write_text(json.dumps(stated))
    tiny.write_lerobot_checkpoint(base, folder / "ours")
    write_assets(folder / "home" / REPO)
    (folder / "words.json").write_text(json.dumps(WORDS))
    save_file({k: v.contiguous() for k, v in given_tensors().items()}, folder / "given.safetensors")
    offline = os.environ | {
        "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "HF_LEROBOT_HOME": str(folder / "home"),
        "HF_HOME": str(folder / "hf"),
    }  # fmt: skip
    done = subprocess.run(
        [PYTHON, str(SIDE), str(folder)], capture_output=True, text=True, env=offline
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.fixture(scope="module")
def theirs(both: Path) -> dict[str, Any]:
    found: dict[str, Any] = load_file(both / "theirs.safetensors")
    return found


def test_raw_observations_become_lerobots_chunk(
    both: Path, theirs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = ChunkPolicy(read_checkpoint(both / "ours"), "cpu")
    given = load_file(both / "given.safetensors")
    noise = given["noise"].numpy()
    monkeypatch.setattr(policy, "_draw", lambda query: {NOISE: noise[query.spec.index]})
    tasks = [Task("parity", n, f"task-{n}", words, 50, 10) for n, words in enumerate(WORDS)]
    queries = [Query(EpisodeSpec(task, n, 0), 0, None) for n, task in enumerate(tasks)]
    seen = {STATE: given[STATE].numpy()[:, None]}
    for key in (FRONT, WRIST):
        pixels = (given[key] * 255).round().byte().permute(0, 2, 3, 1)
        seen[key] = pixels.numpy()[:, None]
    ours = torch.from_numpy(policy.act(Batch(queries, seen)))
    torch.testing.assert_close(ours, theirs["chunk"], rtol=0, atol=1e-4)


def test_five_steps_of_training_are_lerobots(both: Path, theirs: dict[str, Any]) -> None:
    parts = read_checkpoint(both / "ours")
    network, config = parts.network, parts.config
    network.check_preprocessor(parts.preprocessor.steps)
    given = load_file(both / "given.safetensors")
    recipe = resolve(config.training_preset(), OptimizerSettings(), ScheduleSettings())
    optimizer = make_optimizer(recipe, param_groups(recipe, network), fused=False)
    schedule = make_scheduler(recipe, optimizer, STEPS)
    network.train()
    for module in network.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    prompts = parts.preprocessor.encode_prompt([WORDS[0]] * ROWS, {})
    losses = []
    for step in range(STEPS):
        told = {key: torch.from_numpy(value) for key, value in prompts.items()}
        batch = {key: given[key] for key in (FRONT, WRIST, STATE)} | told
        batch[ACTION] = given[f"action {step}"]
        # The number that the inverse of Beta(1.5, 1)'s distribution makes this time of.
        drawn = (0.999 * (1 - given[f"time {step}"])) ** 1.5
        draws = {NOISE: given[f"noise {step}"], TIME: drawn}
        loss, _ = network.loss(parts.preprocessor(batch), draws)
        loss.backward()
        clip_gradients(network.parameters(), recipe.clip_norm)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        losses.append(loss.detach())
    torch.testing.assert_close(torch.stack(losses), theirs["losses"], rtol=1e-5, atol=0)
    weights = dict(network.named_parameters())
    trained = {k.removeprefix("weight "): v for k, v in theirs.items() if k.startswith("weight ")}
    assert set(trained) == {name for name, value in weights.items() if value.requires_grad}
    for name, value in trained.items():
        if name.endswith("to_k.bias"):  # its gradient is rounding error only: softmax ignores it
            continue
        torch.testing.assert_close(weights[name].detach(), value, rtol=0, atol=2e-5, msg=name)
