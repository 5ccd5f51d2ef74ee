"""Parameter groups of X-VLA's optimiser type, ``xvla-adamw``."""

from __future__ import annotations

from typing import Any

from torch import nn

_OTHER = "other"
_NAMED = {"vlm": "vlm", "soft_prompt": "soft_prompts"}
"""Substring of a parameter's name -> its parameter group."""


def parameter_groups(settings: dict[str, Any], network: nn.Module) -> list[dict[str, Any]]:
    """Return parameter groups with their own learning rates, as torch's optimisers take them.

    The vision-language model has a tenth of the learning rate; soft prompts have their own.
    """
    groups: dict[str, list[nn.Parameter]] = {"vlm": [], "soft_prompts": [], _OTHER: []}
    for name, parameter in network.named_parameters():
        if parameter.requires_grad:
            found = (group for part, group in _NAMED.items() if part in name.lower())
            groups[next(found, _OTHER)].append(parameter)
    warm_up = settings["soft_prompt_warmup_lr_scale"]
    soft_prompts = settings["soft_prompt_lr_scale"] if warm_up is None else warm_up
    rates = {"vlm": 0.1, "soft_prompts": soft_prompts, _OTHER: 1.0}
    decays = {"vlm": 0.1, "soft_prompts": 1.0, _OTHER: 1.0}
    return [
        {
            "params": parameters,
            "lr": settings["lr"] * rates[name],
            "weight_decay": settings["weight_decay"] * decays[name],
            "name": name,
        }
        for name, parameters in groups.items()
        if parameters
    ]
