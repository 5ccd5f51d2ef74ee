"""Weights of a base model in NVIDIA's layout, as a start for training."""

from __future__ import annotations

from proctor.policies.groot.sizes import BASE_MODEL
from proctor.policies.lerobot.location import locate
from proctor.policies.lerobot.weights import load_weights, read_weight_files
from proctor.policies.runtime.network import Network


def load_base(network: Network, base: str | None) -> None:
    """Load the weights of the base model ``base``, a folder or a Hub id; None: BASE_MODEL."""
    folder = locate(base or BASE_MODEL).folder
    tensors, _ = read_weight_files(folder)
    load_weights(network, tensors, "_groot_model.", str(folder))
