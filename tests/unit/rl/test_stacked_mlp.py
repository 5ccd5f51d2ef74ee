"""Explicit gradients of stacked MLPs against autograd's."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from proctor.config.sections.online import CriticNetworkSettings
from proctor.policies.gaussian_actor.config import MlpSizes
from proctor.policies.gaussian_actor.network import MLP
from proctor.rl.algorithms.critics import CriticEnsemble
from proctor.rl.algorithms.flat_parameters import FlatParameters
from proctor.rl.algorithms.sac_networks import critic_mlp, memory_layouts
from proctor.rl.algorithms.stacked_mlp import Tape

SIZES = {
    "two layers": CriticNetworkSettings(hidden_dims=[6, 5]),
    "one layer": CriticNetworkSettings(hidden_dims=[4]),
    "three layers, last one plain": CriticNetworkSettings(
        hidden_dims=[6, 5, 4], activate_final=False
    ),
    "tanh at the end": CriticNetworkSettings(hidden_dims=[6, 5], final_activation="Tanh"),
}


class Single(nn.Module):
    """One critic of an ensemble, as a plain module."""

    def __init__(self, settings, values):
        super().__init__()
        self.net = MLP(
            3, MlpSizes(settings.hidden_dims, settings.activate_final, settings.final_activation)
        )
        self.output_layer = nn.Linear(settings.hidden_dims[-1], 1)
        self.load_state_dict(values)

    def forward(self, x):
        return self.output_layer(self.net(x))


@pytest.mark.parametrize("settings", SIZES.values(), ids=SIZES)
def test_outputs_and_gradients_are_those_of_separate_modules(settings):
    torch.manual_seed(0)
    critics = CriticEnsemble(3, 3, settings)
    flat = FlatParameters({"critics": list(critics.parameters())}, memory_layouts(critics))
    stacked, tape = critic_mlp(critics, flat), Tape()
    x, weights = torch.randn(7, 3, requires_grad=True), torch.randn(3, 7, 1)
    found = stacked.forward(x.detach(), tape)
    inner = stacked.backward(tape, weights)
    named = dict(critics.named_heads())
    total = torch.zeros(())
    singles = {}
    for i in range(3):
        prefix = f"critics.{i}."
        own = {k.removeprefix(prefix): v for k, v in named.items() if k.startswith(prefix)}
        singles[prefix] = Single(settings, own)
        expected = singles[prefix](x)
        torch.testing.assert_close(found[i], expected)
        total = total + (expected * weights[i]).sum()
    total.backward()
    torch.testing.assert_close(inner, x.grad)
    for prefix, single in singles.items():
        for name, parameter in single.named_parameters():
            own = named[prefix + name]
            written = flat.gradients.as_strided(own.shape, own.stride(), own.storage_offset())
            torch.testing.assert_close(written, parameter.grad, msg=prefix + name)


def test_without_parameters_their_gradients_are_left_as_they_are():
    critics = CriticEnsemble(2, 3, SIZES["two layers"])
    flat = FlatParameters({"critics": list(critics.parameters())})
    stacked, tape = critic_mlp(critics, flat), Tape()
    stacked.forward(torch.randn(4, 3), tape)
    assert stacked.backward(tape, torch.ones(2, 4, 1), parameters=False).abs().sum() > 0
    assert not flat.gradients.any()
