"""What both sides compute for the tiny goldens of VQ-BeT and TD-MPC: weights, inputs, draws.

Everything is drawn by numpy's frozen generator from its own name, so that files hold outputs only.
"""

from __future__ import annotations

import zlib

import numpy as np
import torch

B, STEPS = 2, 5
"""Rows of a batch, and steps of a training."""
STATE, WORLD, IMAGE = "observation.state", "observation.environment_state", "observation.image"
PAD = "_is_pad"
KEPT = ("pos_grid", "attn.bias", "initted")
_VQBET = {
    "type": "vqbet",
    "crop_shape": (40, 40),
    "pretrained_backbone_weights": None,
    "spatial_softmax_num_keypoints": 4,
    "n_vqvae_training_steps": 2,
    "vqvae_n_embed": 8,
    "vqvae_embedding_dim": 12,
    "vqvae_enc_hidden_dim": 10,
    "gpt_block_size": 20,
    "gpt_input_dim": 24,
    "gpt_output_dim": 16,
    "gpt_n_layer": 2,
    "gpt_n_head": 2,
    "gpt_hidden_dim": 20,
    "dropout": 0.0,
    "scheduler_warmup_steps": 2,
}
_TDMPC = {
    "type": "tdmpc",
    "horizon": 3,
    "image_encoder_hidden_dim": 4,
    "state_encoder_hidden_dim": 10,
    "latent_dim": 8,
    "q_ensemble_size": 3,
    "mlp_dim": 16,
    "cem_iterations": 3,
    "n_gaussian_samples": 12,
    "n_pi_samples": 4,
    "n_elites": 5,
    "max_random_shift_ratio": 0.05,
}
CASES = {
    "vqbet_tiny": _VQBET,
    "vqbet_tiny_sequential": _VQBET | {"sequentially_select": True, "use_group_norm": True},
    "tdmpc_tiny": _TDMPC,
    "tdmpc_tiny_blind": _TDMPC
    | {"q_ensemble_size": 2, "n_action_repeats": 1, "n_action_steps": 2, "n_pi_samples": 0},
}
QUERIES = 3


def shapes(name: str) -> dict[str, tuple[int, ...]]:
    """Return what a case looks at, and its action; images are [C, H, W]."""
    image = {"vqbet_tiny": 48, "vqbet_tiny_sequential": 48, "tdmpc_tiny": 40}.get(name)
    seen: dict[str, tuple[int, ...]] = {STATE: (3,)}
    if name.startswith("tdmpc"):
        seen[WORLD] = (2,)
    if image is not None:
        seen[IMAGE] = (3, image, image)
    return seen | {"action": (2,)}


def normal(name: str, *shape: int) -> torch.Tensor:
    drawn = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape)
    return torch.from_numpy(np.asarray(drawn, np.float32).reshape(shape))


def uniform(name: str, *shape: int) -> torch.Tensor:
    drawn = np.random.RandomState(zlib.crc32(name.encode())).uniform(size=shape)
    return torch.from_numpy(np.asarray(drawn, np.float32).reshape(shape))


def pixels(name: str, *shape: int) -> torch.Tensor:
    """Smooth pictures, uint8 [..., 3, H, W]: no edge turns a rounding into something to see."""
    height, width = shape[-2:]
    waves = normal(name, *shape[:-2], 4)
    y, x = np.linspace(0, 3, height)[:, None], np.linspace(0, 3, width)[None]
    a, b, c, d = (waves[..., i, None, None].numpy() for i in range(4))
    found = 127.5 + 127 * np.sin(a + 3 * b * y + 3 * c * x + d * x * y)
    return torch.from_numpy(np.round(found).astype(np.uint8))


def stats(name: str) -> dict[str, dict[str, torch.Tensor]]:
    found = {}
    for key, shape in shapes(name).items():
        some = uniform(f"stats of {key}", *((3, 1, 1) if key == IMAGE else shape))
        found[key] = {"mean": some, "std": some + 0.5, "min": -some - 1, "max": some + 1.5}
    return found


def weight(key: str, shape: tuple[int, ...]) -> torch.Tensor:
    drawn = normal(key, *shape)
    if key.endswith("running_var"):
        return 1 + 0.3 * drawn.abs()
    if key.endswith("running_mean"):
        return 0.1 * drawn
    if key.endswith("cluster_size"):
        return 2 + drawn.abs()
    if key.endswith("embed"):
        return 0.5 * drawn
    if key.endswith("embed_avg"):
        sizes = weight(key.replace("embed_avg", "cluster_size"), shape[:2])
        return weight(key.replace("embed_avg", "embed"), shape) * sizes[..., None]
    if len(shape) > 1:
        return drawn / float(np.sqrt(np.prod(shape[1:])))
    return 1 + 0.1 * drawn if key.endswith("weight") else 0.05 * drawn


def fill(state: dict[str, torch.Tensor], prefix: str = "") -> None:
    """Give tensors their values, by the names that checkpoints have."""
    for key, tensor in state.items():
        if tensor.is_floating_point() and not key.endswith(KEPT):
            tensor.copy_(weight(prefix + key, tuple(tensor.shape)))


def observation(name: str, query: int) -> dict[str, torch.Tensor]:
    """Return what B episodes see at a step: numbers raw, images uint8."""
    return _seen(name, f"seen at {query}", B)


def _seen(name: str, what: str, *leading: int) -> dict[str, torch.Tensor]:
    found = {}
    for key, shape in shapes(name).items():
        if key != "action":
            make = pixels if key == IMAGE else normal
            found[key] = make(f"{key}, {what}", *leading, *shape)
    return found


def training_batch(name: str, step: int) -> dict[str, torch.Tensor]:
    """Return a batch as a dataset gives it: raw, images uint8, and what lies outside episodes."""
    times, actions = (5, 11) if name.startswith("vqbet") else (4, 3)
    found = _seen(name, f"batch {step}", B, times)
    found["action"] = normal(f"action, batch {step}", B, actions, 2)
    found["next.reward"] = normal(f"reward, batch {step}", B, actions)
    for key in [*shapes(name), "next.reward"]:
        found[key + PAD] = torch.zeros(found[key].shape[:2], dtype=torch.bool)
        if step == 1:  # the second row's episode ends a step too early
            found[key + PAD][1, -1] = True
    return found


def draws(name: str, what: str) -> dict[str, torch.Tensor]:
    """Return what one query, or the loss of one step, draws. Rows that LeRobot shares are alike."""
    config = CASES[name]
    if config["type"] == "vqbet":
        codes = uniform(f"codes, {what}", B, 7, 2, config["vqvae_n_embed"])
        crop = uniform(f"crop, {what}", 1, 2).expand(B, 2).contiguous()
        return {"codes": codes, "crop": crop}
    rounds, horizon = config["cem_iterations"], config["horizon"]
    tried, own = config["n_gaussian_samples"], config["n_pi_samples"]
    judges = uniform(f"judges, {what}", 1, rounds, 2).expand(B, rounds, 2).contiguous()
    return {
        "own": normal(f"own, {what}", B, horizon, own, 2),
        "tried": normal(f"tried, {what}", B, rounds, horizon, tried, 2),
        "last": normal(f"last, {what}", B, rounds, tried + own, 2),
        "choice": uniform(f"choice, {what}", B, config["n_elites"]),
        "judges": judges,
        "shift": uniform(f"shift, {what}", B, horizon + 1, 2),
    }


def summary(value: torch.Tensor) -> torch.Tensor:
    """Return a tensor in five numbers."""
    x = value.detach().double().flatten()
    return torch.stack([x.sum(), x.abs().sum(), x.square().sum().sqrt(), x[0], x[-1]])
