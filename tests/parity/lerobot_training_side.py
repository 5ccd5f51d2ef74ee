"""Runs under LeRobot's own Python: lerobot-train, with noise from a file, every loss written down.

    python lerobot_training_side.py LOSSES.json NOISE.safetensors|- [lerobot-train's flags]

The noise of step i is "i/latent" (ACT) or "i/noise" and "i/time" (Diffusion); "-": LeRobot draws.
"""

import json
import sys
from pathlib import Path

import torch
from lerobot.scripts import lerobot_train
from safetensors.torch import load_file


def main(losses_file: Path, noise_file: str, flags: list[str]) -> None:
    torch.set_num_threads(1)
    noise = {} if noise_file == "-" else load_file(noise_file)
    losses: list[float] = []
    untouched = lerobot_train.update_policy

    def update(metrics, policy, batch, *rest, **named):
        step = len(losses)
        drawn = {
            "randn_like": lambda like, *_, **__: noise[f"{step}/latent"],
            "randn": lambda *_, **__: noise[f"{step}/noise"],
            "randint": lambda *_, **named: (noise[f"{step}/time"] * named["high"]).long(),
        }
        before = {name: getattr(torch, name) for name in drawn}
        forward = policy.forward

        def with_given_noise(inputs):
            for name, value in drawn.items():
                setattr(torch, name, value)
            try:
                return forward(inputs)
            finally:
                for name, value in before.items():
                    setattr(torch, name, value)

        if noise:
            policy.forward = with_given_noise
        result = untouched(metrics, policy, batch, *rest, **named)
        if noise:
            policy.forward = forward
        losses.append(float(metrics.loss.val if hasattr(metrics.loss, "val") else metrics.loss))
        return result

    lerobot_train.update_policy = update
    sys.argv = ["lerobot-train", *flags]
    lerobot_train.main()
    losses_file.write_text(json.dumps(losses))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
