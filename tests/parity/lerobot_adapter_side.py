"""Runs under LeRobot's own Python, with peft: an adapter's chunk, as LeRobot loads and computes it.

    python lerobot_adapter_side.py ADAPTER INPUTS.safetensors OUT.safetensors

Writes the actions in robot units, all that the network gives.
"""

import sys
from pathlib import Path

import torch
from lerobot.configs import PreTrainedConfig
from lerobot.policies.factory import get_policy_class
from lerobot.processor import PolicyProcessorPipeline
from lerobot.processor.converters import policy_action_to_transition, transition_to_policy_action
from lerobot_side import act_chunk, diffusion_chunk
from peft import PeftConfig, PeftModel
from safetensors.torch import load_file, save_file


def main(folder: Path, inputs_file: Path, out: Path) -> None:
    torch.set_num_threads(1)
    config = PreTrainedConfig.from_pretrained(folder)
    assert config.use_peft
    told = PeftConfig.from_pretrained(folder)
    base = get_policy_class(config.type).from_pretrained(
        pretrained_name_or_path=told.base_model_name_or_path, config=config
    )
    policy = PeftModel.from_pretrained(base, folder, config=told).eval()
    pre = PolicyProcessorPipeline.from_pretrained(folder, "policy_preprocessor.json")
    post = PolicyProcessorPipeline.from_pretrained(
        folder,
        "policy_postprocessor.json",
        to_transition=policy_action_to_transition,
        to_output=transition_to_policy_action,
    )
    inputs = load_file(inputs_file)
    noise = inputs.pop("noise", None)
    chunk = {"act": act_chunk, "diffusion": diffusion_chunk}[config.type]
    with torch.inference_mode():
        actions = post(chunk(policy, pre(inputs), noise))
    save_file({"chunk": actions.contiguous()}, out)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
