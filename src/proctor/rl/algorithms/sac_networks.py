"""The networks of SAC as stacked MLPs on flat parameters."""

from __future__ import annotations

from torch import nn

from proctor.policies.gaussian_actor.network import Actor, DiscreteCritic
from proctor.rl.algorithms.critics import CriticEnsemble
from proctor.rl.algorithms.flat_parameters import FlatParameters, Layout
from proctor.rl.algorithms.stacked_mlp import StackedMlp


def trainable(module: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that are not frozen."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def actor_parameters(actor: Actor) -> list[nn.Parameter]:
    """Return the parameters after the encoder; those of both outputs are neighbours."""
    return [parameter for group in _actor_groups(actor) for parameter in group]


def actor_mlp(actor: Actor, flat: FlatParameters) -> StackedMlp:
    """Return the actor with one output [2A]: mean, then logarithm of the variance."""
    blocks = (flat.block(group, stacked=False) for group in _actor_groups(actor))
    return StackedMlp(actor.network.net, blocks)


def _actor_groups(actor: Actor) -> list[list[nn.Parameter]]:
    outputs = zip(actor.mean_layer.parameters(), actor.std_layer.parameters(), strict=True)
    return [*([p] for p in actor.network.parameters()), *(list(pair) for pair in outputs)]


def gripper_parameters(gripper: DiscreteCritic) -> list[nn.Parameter]:
    """Return the gripper critic's parameters after the encoder."""
    return [*gripper.net.parameters(), *gripper.output_layer.parameters()]


def gripper_mlp(gripper: DiscreteCritic, flat: FlatParameters) -> StackedMlp:
    """Return the gripper critic with one output per command."""
    blocks = (flat.block([p], stacked=False) for p in gripper_parameters(gripper))
    return StackedMlp(gripper.net.net, blocks)


def critic_mlp(critics: CriticEnsemble, flat: FlatParameters) -> StackedMlp:
    """Return the critics, with one output each."""
    return StackedMlp(critics.structure, (flat.block([p], stacked=True) for p in critics.stacks))


def memory_layouts(module: Actor | DiscreteCritic | CriticEnsemble) -> dict[nn.Parameter, Layout]:
    """Return the layouts of the hidden layers' weights."""
    if isinstance(module, CriticEnsemble):
        first, *others = [stack for stack in module.stacks if stack.dim() == 3][:-1]
        return {first: Layout.INPUT_FIRST} | dict.fromkeys(others, Layout.TRANSPOSED)
    net = module.network if isinstance(module, Actor) else module.net
    return dict.fromkeys((p for p in net.parameters() if p.dim() == 2), Layout.TRANSPOSED)
