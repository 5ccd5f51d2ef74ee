"""Runs under LeRobot's own Python: loads a checkpoint, computes its chunk, saves it again.

    python lerobot_side.py CHECKPOINT INPUTS.safetensors OUT_DIR

Writes OUT_DIR/chunk.safetensors (actions in robot units, all that the network gives) and
OUT_DIR/saved, the checkpoint as LeRobot writes it.
"""

import json
import sys
from pathlib import Path

import torch
from lerobot.policies.act.modeling_act import ACTPolicy
from lerobot.policies.diffusion.modeling_diffusion import DiffusionPolicy
from lerobot.policies.tdmpc.modeling_tdmpc import TDMPCPolicy
from lerobot.policies.vqbet.modeling_vqbet import VQBeTPolicy
from lerobot.processor import PolicyProcessorPipeline
from lerobot.processor.converters import policy_action_to_transition, transition_to_policy_action
from safetensors.torch import load_file, save_file


def act_chunk(policy, batch, _noise):
    batch = {key: value[:, -1] for key, value in batch.items() if key.startswith("observation")}
    return policy.predict_action_chunk(batch)


def diffusion_chunk(policy, batch, noise):
    from diffusers.schedulers import scheduling_ddpm

    fresh = iter(noise[:, 1:].unbind(1))
    scheduling_ddpm.randn_tensor = lambda *args, **kwargs: next(fresh)
    batch = {key: value for key, value in batch.items() if key.startswith("observation")}
    if policy.config.image_features:
        images = [batch[key] for key in policy.config.image_features]
        batch["observation.images"] = torch.stack(images, dim=-4)
    return policy.diffusion.generate_actions(batch, noise=noise[:, 0])


def vqbet_chunk(policy, batch, noise):
    """Codes by our draws, for the stretch that is played; of the others, the likeliest."""
    config = policy.config
    given = torch.full((len(noise), config.n_obs_steps + config.n_action_pred_token - 1, 2, 1), 0.5)
    given = given.repeat(1, 1, 1, noise.shape[-1])
    given[:, config.n_obs_steps - 1] = noise

    layers = iter(given.unbind(2))

    def drawn(probabilities, num_samples):
        one = next(layers) if config.sequentially_select else given
        gumbel = -torch.log(-torch.log(one.reshape(probabilities.shape)))
        return (probabilities.log() + gumbel).argmax(-1, keepdim=True)

    torch.multinomial = drawn
    images = [batch[key] for key in config.image_features]
    seen = {"observation.images": torch.stack(images, dim=-4)}
    return policy.vqbet(seen | {"observation.state": batch["observation.state"]}, rollout=True)


def tdmpc_chunk(policy, batch, _noise):
    batch = {key: value[:, -1] for key, value in batch.items() if key.startswith("observation")}
    policy.reset()
    return torch.stack([policy.select_action(batch) for _ in range(2)], 1)


def main(checkpoint: Path, inputs_file: Path, out: Path) -> None:
    torch.set_num_threads(1)
    kind = json.loads((checkpoint / "config.json").read_text())["type"]
    policy_class, chunk = {
        "act": (ACTPolicy, act_chunk),
        "diffusion": (DiffusionPolicy, diffusion_chunk),
        "tdmpc": (TDMPCPolicy, tdmpc_chunk),
        "vqbet": (VQBeTPolicy, vqbet_chunk),
    }[kind]
    policy = policy_class.from_pretrained(checkpoint, strict=True)
    pre = PolicyProcessorPipeline.from_pretrained(checkpoint, "policy_preprocessor.json")
    post = PolicyProcessorPipeline.from_pretrained(
        checkpoint,
        "policy_postprocessor.json",
        to_transition=policy_action_to_transition,
        to_output=transition_to_policy_action,
    )
    inputs = load_file(inputs_file)
    noise = inputs.pop("noise", None)
    with torch.inference_mode():
        actions = post(chunk(policy, pre(inputs), noise))
    saved = out / "saved"
    for part in (policy, pre, post):
        part.save_pretrained(saved)
    save_file({"chunk": actions.contiguous()}, out / "chunk.safetensors")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
