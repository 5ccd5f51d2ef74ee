"""Runs under LeRobot's own Python, with transformers: the families that are told in words.

    python lerobot_language_side.py FOLDER

FOLDER/ours/CASE are tiny checkpoints: it loads each, steps and all, and writes the chunk of the
goldens' observations, words and noise into FOLDER/CASE.safetensors; then it saves what it loaded
as FOLDER/theirs/CASE. What the goldens were made by says what LeRobot's models' names mean here.
"""

import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "golden"))
import make_dit
import make_pi
import make_smolvla
import make_xvla
from lerobot.configs import PreTrainedConfig
from lerobot.policies.factory import get_policy_class, make_pre_post_processors
from lerobot.policies.pi0_fast import modeling_pi0_fast
from lerobot.policies.smolvla import smolvlm_with_expert
from lerobot.processor import tokenizer_processor
from safetensors.torch import save_file
from transformers import AutoTokenizer, PreTrainedTokenizerFast


def loaded(folder: Path):
    config = PreTrainedConfig.from_pretrained(folder)
    policy = get_policy_class(config.type).from_pretrained(folder, strict=True).eval()
    return policy, *make_pre_post_processors(config, pretrained_path=str(folder))


def chunk_of(case: str, policy, batch: dict) -> torch.Tensor:
    if case.startswith("multi_task_dit"):
        with patch("torch.randn", return_value=make_dit.noise_of("noise")):
            return policy._generate_actions(policy._prepare_batch(batch))
    if case.startswith("xvla"):
        torch.manual_seed(0)
        return policy.predict_action_chunk(batch)
    module = make_smolvla if case == "smolvla" else make_pi
    noise = {} if case == "pi0_fast" else {"noise": module.noise_of("noise")}
    return policy.predict_action_chunk(batch, **noise)


def seen(case: str) -> dict:
    if case.startswith("multi_task_dit"):
        return make_dit.raw_batch()
    if case.startswith("xvla"):
        return make_xvla.raw_batch()
    return make_smolvla.raw_batch(3) if case == "smolvla" else make_pi.raw_batch()


def with_tiny_models() -> None:
    special = SimpleNamespace(fake_image_token_id=0, global_image_token_id=0)
    no_processor = SimpleNamespace(from_pretrained=lambda _: SimpleNamespace(tokenizer=special))
    smolvlm_with_expert.AutoProcessor = no_processor
    words = make_pi.OUT / "words"
    make_pi.make_small(len(PreTrainedTokenizerFast.from_pretrained(words)))


def with_pi_tokenizers() -> None:
    """Let what pi0 and its relatives name on the Hub be what lies beside the goldens."""
    names = {there: str(make_pi.OUT / here) for here, there in make_pi.REAL.items()}

    class Named(make_pi.Both):
        @staticmethod
        def from_pretrained(name: str, **options):
            if name not in names:
                return AutoTokenizer.from_pretrained(name)
            return make_pi.Both.from_pretrained(names[name], **options)

    fast = SimpleNamespace(from_pretrained=lambda name, **_: make_pi.Fast(names[name]))
    for module in (tokenizer_processor, modeling_pi0_fast):
        module.AutoProcessor, module.AutoTokenizer = fast, Named


@torch.no_grad()
def main(folder: Path) -> None:
    torch.set_num_threads(1)
    with_tiny_models()
    with_pi_tokenizers()
    for place in sorted((folder / "ours").iterdir()):
        policy, before, after = loaded(place)
        batch = before(seen(place.name))
        chunk = after(chunk_of(place.name, policy, batch))
        tokens = batch["observation.language.tokens"]
        save_file(
            {"chunk": chunk.contiguous(), "tokens": tokens}, folder / f"{place.name}.safetensors"
        )
        for part in (policy, before, after):
            part.save_pretrained(folder / "theirs" / place.name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
