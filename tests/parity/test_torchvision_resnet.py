"""Against torchvision's ResNets: the same file of weights gives the same feature maps.

Needs torchvision in a venv of its own: set PROCTOR_TORCHVISION_PYTHON to that venv's python.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from proctor.policies.blocks import pretrained_resnet  # noqa: E402
from proctor.policies.blocks.layers import Layers  # noqa: E402
from proctor.policies.blocks.resnet import FrozenBatchNorm2d, ResNet  # noqa: E402

PYTHON = os.environ.get("PROCTOR_TORCHVISION_PYTHON", "")
pytestmark = pytest.mark.skipif(
    not Path(PYTHON).is_file(), reason="torchvision not installed (set PROCTOR_TORCHVISION_PYTHON)"
)


@dataclass
class Named:
    """The config fields that name the weights."""

    vision_backbone: str
    backbone_file: str | None
    pretrained_backbone_weights: str | None = "IMAGENET1K_V1"


@pytest.fixture(scope="module")
def theirs(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("torchvision")
    side = Path(__file__).with_name("torchvision_side.py")
    subprocess.run([PYTHON, str(side), str(folder)], check=True)
    return folder


@pytest.mark.parametrize("name", ["resnet18", "resnet34"])
@pytest.mark.parametrize("kind", ["plain", "frozen"])
def test_a_file_of_torchvision_gives_its_feature_maps(theirs, name, kind):
    found = torch.load(theirs / "found.pth", weights_only=True)
    norm = nn.BatchNorm2d if kind == "plain" else FrozenBatchNorm2d
    network: nn.Module = ResNet(name, norm)
    if kind == "plain":  # Diffusion's and VQ-BeT's form
        network = Layers(*network.children())
    pretrained_resnet.load_backbones(Named(name, str(theirs / f"{name}.pth")), [network])
    with torch.no_grad():
        ours = network.eval()(found["images"])
    expected = found[f"{name}.{kind}"]
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5 * expected.abs().max().item())


def test_the_urls_are_torchvisions(theirs):
    expected = [f"{pretrained_resnet.HOST}/{name}" for name in pretrained_resnet.FILES.values()]
    assert (theirs / "urls.txt").read_text().splitlines() == expected
