"""Pretrained weights of the vision-language model, as a start for training."""

from __future__ import annotations

from torch import nn

from proctor.policies.lerobot.location import local_folder
from proctor.policies.lerobot.tensor_file import read_tensors
from proctor.policies.lerobot.weights import WEIGHTS_FILE, check_tensor
from proctor.system.hub import download


def load_vlm(vlm: nn.Module, name: str) -> None:
    """Load the weights of the model ``name``, a local folder or a Hub id, into ``vlm``.

    Layers that ``vlm`` does not have are skipped.
    """
    folder = local_folder(name) or download(name, None, ["config.json", WEIGHTS_FILE])
    file = folder / WEIGHTS_FILE
    found, wanted = read_tensors(file), vlm.state_dict()
    for key, expected in wanted.items():
        check_tensor(key, expected, found.get(key), str(file))
    vlm.load_state_dict({key: found[key] for key in wanted})
