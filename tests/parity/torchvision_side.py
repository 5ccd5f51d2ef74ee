"""torchvision's side: random weights of its ResNets, and the feature maps they give.

    python torchvision_side.py FOLDER

Runs in a venv with torchvision. Where its compiled operators do not load (a build for CUDA beside
a torch for CPUs), their names are declared first: ResNets use none of them.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import torch


def declare_operators() -> torch.library.Library:
    """Declare the operators whose names torchvision's import needs, while the result is held."""
    spec = importlib.util.find_spec("torchvision")
    assert spec is not None
    assert spec.origin is not None
    text = Path(spec.origin).with_name("_meta_registrations.py").read_text()
    names = {
        *re.findall(r'register_meta\("(\w+)"\)', text),
        *re.findall(r"torchvision::(\w+)", text),
    }
    library = torch.library.Library("torchvision", "DEF")
    for name in names:
        library.define(f"{name}(Tensor x) -> Tensor")
    return library


def write(folder: Path) -> None:
    from torchvision.models import ResNet18_Weights, ResNet34_Weights, resnet18, resnet34
    from torchvision.models._utils import IntermediateLayerGetter
    from torchvision.ops import FrozenBatchNorm2d

    torch.manual_seed(0)
    images = torch.randn(2, 3, 70, 50)
    found = {"images": images}
    for name, make in (("resnet18", resnet18), ("resnet34", resnet34)):
        network = make().eval()
        for key, value in network.state_dict().items():
            if "running" in key or "bn" in key:
                value.copy_(torch.rand_like(value.float()) + 0.5)
        torch.save(network.state_dict(), folder / f"{name}.pth")
        frozen = make(norm_layer=FrozenBatchNorm2d).eval()
        for kind, other in (("plain", network), ("frozen", frozen)):
            other.load_state_dict(network.state_dict())
            with torch.no_grad():
                maps = IntermediateLayerGetter(other, {"layer4": "out"})(images)
            found[f"{name}.{kind}"] = maps["out"]
    torch.save(found, folder / "found.pth")
    urls = [weights.IMAGENET1K_V1.url for weights in (ResNet18_Weights, ResNet34_Weights)]
    (folder / "urls.txt").write_text("\n".join(urls))


if __name__ == "__main__":
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        for loaded in [name for name in sys.modules if name.startswith("torchvision")]:
            del sys.modules[loaded]
        declared = declare_operators()
    write(Path(sys.argv[1]))
