"""Makes data/pi_runs: what LeRobot's own pi0, pi0.5 and pi0-FAST do with tiny models.

    PYTHON tests/golden/make_pi.py     (of a venv with lerobot 0.6.1, transformers 5.5.4, scipy)

Weights follow the recipe of recipes.py and are not stored; nothing is downloaded: the tokenizers
are made here, of few words, and are kept beside.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from lerobot.configs import FeatureType, PolicyFeature
from lerobot.policies import pi_gemma
from lerobot.policies.factory import get_policy_class, make_policy_config, make_pre_post_processors
from lerobot.policies.pi0 import modeling_pi0
from lerobot.policies.pi0_fast import modeling_pi0_fast
from lerobot.policies.pi05 import modeling_pi05
from lerobot.processor import tokenizer_processor
from recipes import GOLDEN, fill_weights, hash_input, recipe_input
from safetensors.torch import save_file
from scipy.fft import dct
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

OUT = GOLDEN / "pi_runs"
WORDS = ["push the red block", " open_it\n", "grasp the mug, and set it down"]
REAL = {"words": "google/paligemma-3b-pt-224", "codes": "lerobot/fast-action-tokenizer"}
"""What the tokenizers made here stand for."""
CODES = 290
"""Codes that there are for sure."""
STEPS, CHUNK, ACTIONS, STATE = 5, 6, 3, 4
SIZES = {
    "gemma_2b": {"width": 32, "depth": 2, "mlp_dim": 64},
    "gemma_300m": {"width": 24, "depth": 2, "mlp_dim": 48},
}
KEPT = (
    "model.action_out_proj.weight",
    "model.paligemma_with_expert.gemma_expert.model.layers.0.self_attn.q_proj.weight",
    "model.paligemma_with_expert.paligemma.model.language_model.layers.0.mlp.down_proj.weight",
    "model.paligemma_with_expert.paligemma.model.language_model.layers.1.self_attn.k_proj.weight",
    "model.paligemma_with_expert.paligemma.model.multi_modal_projector.linear.weight",
    "model.paligemma_with_expert.paligemma.model.vision_tower.vision_model.post_layernorm.weight",
)
"""Weights that are stored after training, of those that there are."""


def make_words(folder: Path) -> None:
    """A tokenizer as PaliGemma's: spaces are marks, BOS comes first."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[▁:;,|\n]|\d"), "isolated")
    corpus = [*WORDS, "Task: push the mug, State: -1 0 128 255;\nAction: |"] * 3
    specials = ["<pad>", "<eos>", "<bos>", "<unk>"]
    letters = sorted(set("abcdefghijklmnopqrstuvwxyzTSA0123456789-▁:;,|\n"))
    trainer = trainers.BpeTrainer(
        vocab_size=120, min_frequency=2, special_tokens=specials, initial_alphabet=letters
    )
    tokenizer.train_from_iterator(corpus, trainer)
    rules = json.loads(tokenizer.to_str())
    known = rules["model"]["vocab"]
    known |= {f"<{n}>": len(known) + n for n in range(450)}  # as <loc0000> ... of PaliGemma's own
    tokenizer = Tokenizer.from_str(json.dumps(rules))
    tokenizer.post_processor = TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 2)])
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        unk_token="<unk>",
    ).save_pretrained(folder)


def make_codes(folder: Path) -> None:
    """A tokenizer of byte pairs as FAST's, and what it says of coefficients."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    letters = [chr(c) for c in range(60)]
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), max_token_length=999
    )
    zeros = "".join(letters[30 + d] for d in (0, 0, 0, 1, 0, -1, 0, 0, 2, -2, 0, 0))
    tokenizer.train_from_iterator([zeros] * 9, trainer)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    said = '{"action_dim": null, "min_token": -30, "scale": 10, "time_horizon": null}\n'
    (folder / "processor_config.json").write_text(said)


class Fast:
    """FAST's tokenizer: its own comes as code from the Hub."""

    scale, min_token = 10, -30

    def __init__(self, folder: str) -> None:
        self.bpe_tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)

    def __call__(self, actions: torch.Tensor) -> list[list[int]]:
        rounded = np.around(dct(np.asarray(actions), axis=1, norm="ortho") * self.scale)
        texts = (
            "".join(map(chr, np.maximum(c.ravel() - self.min_token, 0).astype(int)))
            for c in rounded
        )
        return [self.bpe_tokenizer(text)["input_ids"] for text in texts]


class Both:
    """A tokenizer that ends what it numbers, and does not begin it, where that is asked for."""

    @staticmethod
    def from_pretrained(name: str, *, add_eos_token: bool = False, **_) -> PreTrainedTokenizerFast:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(name)
        if add_eos_token:
            ending = TemplateProcessing(single="$A <eos>", special_tokens=[("<eos>", 1)])
            tokenizer.backend_tokenizer.post_processor = ending
        return tokenizer


def make_small(vocabulary: int) -> None:
    """Let LeRobot's names of models mean small ones."""

    def gemma(variant: str) -> SimpleNamespace:
        return SimpleNamespace(num_heads=8, num_kv_heads=1, head_dim=8, **SIZES[variant])

    for module in (modeling_pi0, modeling_pi05, modeling_pi0_fast):
        module.get_gemma_config = gemma

    vlm, expert = pi_gemma.PaliGemmaForConditionalGenerationWithPiGemma, pi_gemma.PiGemmaForCausalLM
    vlm_init, expert_init = vlm.__init__, expert.__init__

    def small_vlm(self, config) -> None:
        vision = config.vision_config
        vision.hidden_size, vision.num_hidden_layers, vision.num_attention_heads = 24, 2, 2
        vision.intermediate_size, vision.projection_dim, vision.image_size = 40, 32, 28
        config.projection_dim = 32
        config.text_config.vocab_size = config._vocab_size = vocabulary
        vlm_init(self, config)

    def small_expert(self, config) -> None:
        config.vocab_size = vocabulary
        expert_init(self, config)

    vlm.__init__, expert.__init__ = small_vlm, small_expert


def config_of(kind: str):
    flow = {"num_inference_steps": 4} if kind != "pi0_fast" else {}
    said = {
        "text_tokenizer_name": str(OUT / "words"),
        "action_tokenizer_name": str(OUT / "codes"),
        "max_action_tokens": 40,
        "max_decoding_steps": 12,
        "fast_skip_tokens": 128,
        "validate_action_token_prefix": False,
    }
    return make_policy_config(
        kind,
        input_features={
            "observation.images.top": PolicyFeature(FeatureType.VISUAL, (3, 24, 40)),
            "observation.images.wrist": PolicyFeature(FeatureType.VISUAL, (3, 28, 28)),
            "observation.state": PolicyFeature(FeatureType.STATE, (STATE,)),
        },
        output_features={"action": PolicyFeature(FeatureType.ACTION, (ACTIONS,))},
        device="cpu",
        push_to_hub=False,
        chunk_size=CHUNK,
        n_action_steps=CHUNK,
        max_state_dim=10,
        max_action_dim=8,
        image_resolution=(28, 28),
        tokenizer_max_length=60,
        optimizer_lr=1e-3,
        scheduler_warmup_steps=2,
        scheduler_decay_steps=STEPS,
        **(said if kind == "pi0_fast" else flow),
    )


def raw_batch() -> dict:
    rows = len(WORDS)
    pictures = {
        "observation.images.top": hash_input("top", [rows, 24, 40, 3], 0, 255.99),
        "observation.images.wrist": hash_input("wrist", [rows, 28, 28, 3], 0, 255.99),
    }
    return {
        **{key: p.byte().permute(0, 3, 1, 2).float() / 255 for key, p in pictures.items()},
        "observation.state": recipe_input("state", [rows, STATE], -2, 2),
        "task": list(WORDS),
    }


def stats() -> dict:
    found = {}
    for key, size in (("observation.state", STATE), ("action", ACTIONS)):
        mean = recipe_input(f"{key} mean", [size], -1, 1)
        std = recipe_input(f"{key} std", [size], 0.5, 2)
        found[key] = {"mean": mean, "std": std, "q01": mean - 2 * std, "q99": mean + 2 * std}
    return found


def noise_of(name: str) -> torch.Tensor:
    return recipe_input(name, [len(WORDS), CHUNK, 8], -2, 2)


def policy_of(kind: str):
    policy = get_policy_class(kind)(config_of(kind))
    fill_weights(policy, "")
    if kind == "pi0_fast":  # it says what has a code, and not what fills up or begins
        head = policy.model.paligemma_with_expert.paligemma.lm_head.weight
        last = len(head) - 1 - policy.config.fast_skip_tokens
        head.data[: last - CODES + 1] = 0
        head.data[last + 1 :] = 0
    return policy


def losses(kind: str, policy, batch: dict, outputs: dict) -> None:
    """Train for a few steps on one batch, as LeRobot's preset says."""
    config = policy.config
    policy.train()
    optimizer = config.get_optimizer_preset().build(policy.get_optim_params())
    scheduler = config.get_scheduler_preset().build(optimizer, STEPS)
    found = []
    for step in range(STEPS):
        if kind != "pi0_fast":
            noise, time = (
                noise_of(f"noise {step}"),
                recipe_input(f"time {step}", [len(WORDS)], 0.01, 0.99),
            )
            policy.model.sample_noise = lambda shape, device, noise=noise: noise
            policy.model.sample_time = lambda size, device, time=time: time
        loss, _ = policy.forward(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), config.optimizer_grad_clip_norm)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        found.append(loss.detach())
    outputs["losses"] = torch.stack(found)
    state = policy.state_dict()
    outputs |= {f"trained.{name}": state[name].clone() for name in KEPT if name in state}


def main() -> None:
    torch.set_num_threads(1)
    shutil.rmtree(OUT, ignore_errors=True)
    make_words(OUT / "words")
    make_codes(OUT / "codes")
    for module in (tokenizer_processor, modeling_pi0_fast):
        module.AutoProcessor = SimpleNamespace(from_pretrained=lambda name, **_: Fast(name))
        module.AutoTokenizer = Both
    make_small(len(PreTrainedTokenizerFast.from_pretrained(OUT / "words")))
    name_words()
    for kind in ("pi0", "pi05", "pi0_fast"):
        policy, outputs = policy_of(kind), {}
        before, after = make_pre_post_processors(policy.config, dataset_stats=stats())
        batch = before(raw_batch())
        outputs["tokens"] = batch["observation.language.tokens"]
        outputs["mask"] = batch["observation.language.attention_mask"]
        noise = {} if kind == "pi0_fast" else {"noise": noise_of("noise")}
        chunk = policy.predict_action_chunk(batch, **noise)
        outputs["chunk"] = after(chunk)
        actions = recipe_input("actions", [len(WORDS), CHUNK, ACTIONS], -2, 2)
        sample = before({**raw_batch(), "action": actions})
        for key in ("action.tokens", "action.token_mask"):
            if key in sample:
                outputs[key] = sample[key]
        losses(kind, policy, sample, outputs)
        folder = OUT / kind
        for part in (policy.config, before, after):
            part.save_pretrained(folder)
        for file in folder.glob("*.json"):
            text = file.read_text()
            for here, there in REAL.items():
                text = text.replace(str(OUT / here), there)
            file.write_text(text)
        save_file({k: v.contiguous() for k, v in outputs.items()}, folder / "outputs.safetensors")


def name_words() -> None:
    """Let the processors read by the tokenizer that was made here, and be saved as ever."""
    original = tokenizer_processor.TokenizerProcessorStep.__post_init__

    def found_here(self) -> None:
        name, self.tokenizer_name = self.tokenizer_name, str(OUT / "words")
        original(self)
        self.tokenizer_name = name

    tokenizer_processor.TokenizerProcessorStep.__post_init__ = found_here


if __name__ == "__main__":
    main()
