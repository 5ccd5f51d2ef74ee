"""Makes data/rtc.safetensors: chunks of LeRobot's SmolVLA that are led by what is left of old ones.

PYTHON tests/golden/make_rtc.py        (as make_smolvla.py, whose tiny model it is)
"""

from __future__ import annotations

from types import SimpleNamespace

import torch
from lerobot.configs import RTCAttentionSchedule
from lerobot.policies.factory import make_pre_post_processors
from lerobot.policies.rtc.configuration_rtc import RTCConfig
from lerobot.policies.smolvla import smolvlm_with_expert
from make_smolvla import ACTIONS, CHUNK, WORDS, noise_of, policy_of, raw_batch, stats
from recipes import GOLDEN, recipe_input
from safetensors.torch import save_file

CASES = {"linear": ("LINEAR", 1, 4), "exp": ("EXP", 2, 10), "zeros": ("ZEROS", 2, 3)}
"""Schedule, inference delay, execution horizon."""
LEFT = 4


def main() -> None:
    torch.set_num_threads(1)
    special = SimpleNamespace(fake_image_token_id=0, global_image_token_id=0)
    no_processor = SimpleNamespace(from_pretrained=lambda _: SimpleNamespace(tokenizer=special))
    smolvlm_with_expert.AutoProcessor = no_processor
    left = recipe_input("left over", [len(WORDS), LEFT, ACTIONS], -2, 2)
    outputs = {}
    for name, (schedule, delay, horizon) in CASES.items():
        rtc = RTCConfig(
            prefix_attention_schedule=RTCAttentionSchedule[schedule], execution_horizon=horizon
        )
        policy = policy_of(rtc_config=rtc)
        before, _ = make_pre_post_processors(policy.config, dataset_stats=stats())
        outputs[name] = policy.predict_action_chunk(
            before(raw_batch(len(WORDS))),
            noise=noise_of("noise"),
            inference_delay=delay,
            prev_chunk_left_over=left,
        )
    assert outputs["linear"].shape[1] == CHUNK
    save_file(
        {key: value.contiguous() for key, value in outputs.items()}, GOLDEN / "rtc.safetensors"
    )


if __name__ == "__main__":
    main()
