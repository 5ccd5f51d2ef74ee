"""ImageNet weights of ResNet image encoders: torchvision's files, downloaded or local.

Names, URLs and cache folder are torchvision's, so both find each other's downloads:
``$TORCH_HOME/hub/checkpoints/resnet18-f37072fd.pth``. The end of a name is the start of the file's
SHA-256.
"""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from proctor.errors import UsageError
from proctor.policies.blocks.resnet import ResNet
from proctor.policies.lerobot.checkpoint.tensor_file import read_tensors
from proctor.system.files import sha256_of
from proctor.system.hub.downloads import RemoteFile, download_file

HOST = "https://download.pytorch.org/models"
FILES = {"resnet18": "resnet18-f37072fd.pth", "resnet34": "resnet34-b627a593.pth"}
"""torchvision's file of IMAGENET1K_V1, by backbone."""
_ENUMS = {"resnet18": "ResNet18_Weights", "resnet34": "ResNet34_Weights"}
_MEMBERS = ("IMAGENET1K_V1", "DEFAULT")
_MAX_BYTES = 512 * 2**20
_HASH = re.compile(r"-([0-9a-f]{8})\.pth$")
_CLASSIFIER = ("fc.weight", "fc.bias")
_COUNTER = "num_batches_tracked"
"""Batches that a batch norm has seen; old files do not have it."""
_SCRATCH = "train the image encoder from scratch with --policy.pretrained_backbone_weights=null"


class BackboneConfig(Protocol):
    """Config fields that name the weights."""

    vision_backbone: str
    pretrained_backbone_weights: str | None
    backbone_file: str | None


def load_backbones(
    config: BackboneConfig, backbones: Iterable[nn.Module], *, group_norm: bool = False
) -> None:
    """Load ImageNet weights into ResNets, or into sequences of a ResNet's children.

    Args:
        config: names the weights, and perhaps a local file with them.
        backbones: the modules; without any, nothing is read or downloaded.
        group_norm: whether group norm replaces batch norm, which no weights fit.
    """
    modules = list(backbones)
    if config.pretrained_backbone_weights is None:
        if config.backbone_file is not None:
            raise UsageError(
                "--policy.backbone_file needs --policy.pretrained_backbone_weights="
                f"{_enum_name(config)}; null means random weights",
                code="flag.conflict",
            )
        return
    if not modules:
        return
    if group_norm:
        raise UsageError(
            "--policy.use_group_norm=true replaces the batch norm that pretrained weights need; "
            f"leave it out, or {_SCRATCH}",
            code="policy.conflict",
        )
    _check_name(config)
    file = _find_file(config)
    stored = _read(file)
    for module in modules:
        module.load_state_dict(_fitting(stored, module, file))


def _enum_name(config: BackboneConfig) -> str:
    return f"{_ENUMS[config.vision_backbone]}.{_MEMBERS[0]}"


def _check_name(config: BackboneConfig) -> None:
    """Refuse weights that the backbone does not have; torchvision's spellings are known."""
    weights = str(config.pretrained_backbone_weights)
    if weights.removeprefix(f"{_ENUMS[config.vision_backbone]}.") not in _MEMBERS:
        raise UsageError(
            f"--policy.pretrained_backbone_weights={weights}: {config.vision_backbone} has the "
            f"weights {_enum_name(config)}; give these, or {_SCRATCH}",
            code="policy.unknown-choice",
        )


def _find_file(config: BackboneConfig) -> Path:
    """Return the local file with the weights, downloaded first if it is missing."""
    if config.backbone_file is not None:
        file = Path(config.backbone_file).expanduser()
        if not file.is_file():
            raise UsageError(
                f"--policy.backbone_file: there is no file {file}",
                code="policy.missing-backbone-weights",
            )
        _check_hash(file)
        return file
    name = FILES[config.vision_backbone]
    file = Path(torch.hub.get_dir()) / "checkpoints" / name
    if file.is_file():
        _check_hash(file)
        return file
    try:
        download_file(
            RemoteFile(f"{HOST}/{name}", _hash_in(name), _MAX_BYTES),
            file,
            f"put {name} into {file.parent}, name it with --policy.backbone_file=FILE, or "
            f"{_SCRATCH}",
        )
    except UsageError as error:
        raise UsageError(str(error), code="policy.missing-backbone-weights") from None
    return file


def _hash_in(name: str) -> str:
    """Return the start of the SHA-256 in a file's name; empty if there is none."""
    found = _HASH.search(name)
    return found[1] if found else ""


def _check_hash(file: Path) -> None:
    try:
        found = sha256_of(file)
    except OSError as error:
        raise UsageError(
            f"cannot read {file}: {error.strerror}", code="policy.invalid-backbone-weights"
        ) from None
    if not found.startswith(_hash_in(file.name)):
        raise UsageError(
            f"{file} is damaged: its SHA-256 begins with {found[:8]}, not as its name says; "
            "remove it and try again",
            code="policy.invalid-backbone-weights",
        )


def _read(file: Path) -> dict[str, Tensor]:
    """Return the tensors of a .pth or .safetensors file; no code in it is executed."""
    if os.path.getsize(file) > _MAX_BYTES:  # noqa: PTH202  follows links, as the reader does
        raise UsageError(
            f"{file} has more than {_MAX_BYTES} bytes, so it is no ResNet-18 or -34",
            code="policy.invalid-backbone-weights",
        )
    if file.suffix == ".safetensors":
        return read_tensors(file)
    try:  # weights_only: torch refuses other pickles
        stored = torch.load(file, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, pickle.UnpicklingError, EOFError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).partition("\n")[0]
        raise UsageError(
            f"{file} is not a file of weights: {reason}", code="policy.invalid-backbone-weights"
        ) from None
    if not isinstance(stored, Mapping) or not all(
        isinstance(value, Tensor) for value in stored.values()
    ):
        raise UsageError(
            f"{file} does not hold a state dict of tensors", code="policy.invalid-backbone-weights"
        )
    return {str(key): value for key, value in stored.items()}


def _fitting(stored: Mapping[str, Tensor], module: nn.Module, file: Path) -> dict[str, Tensor]:
    """Return the state dict for ``module``, whose names may be those of numbered children."""
    own = {
        _torchvision_name(key, module): (key, value) for key, value in module.state_dict().items()
    }
    foreign = [
        key
        for key in stored
        if key not in own and key not in _CLASSIFIER and not key.endswith(_COUNTER)
    ]
    found: dict[str, Tensor] = {}
    for name, (key, value) in own.items():
        given = stored.get(name, value if name.endswith(_COUNTER) else None)
        if given is None or given.shape != value.shape:
            foreign.append(name)
        else:
            found[key] = given.to(value.dtype)
    if foreign:
        raise UsageError(
            f"{file} belongs to another network: {foreign[0]} does not fit "
            "(--policy.vision_backbone chooses between resnet18 and resnet34)",
            code="policy.invalid-backbone-weights",
        )
    return found


def _torchvision_name(key: str, module: nn.Module) -> str:
    """Return torchvision's name of a tensor: ``4.0.conv1.weight`` is in ``layer1``."""
    first, _, rest = key.partition(".")
    return key if isinstance(module, ResNet) else f"{_CHILDREN[int(first)]}.{rest}"


_CHILDREN = ("conv1", "bn1", "relu", "maxpool", "layer1", "layer2", "layer3", "layer4")
"""Children of a ResNet, in the order of ``nn.Sequential(*resnet.children())``."""
