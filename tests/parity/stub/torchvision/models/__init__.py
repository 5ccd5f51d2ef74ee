from torch import nn

from proctor.policies.blocks.resnet import ResNet
from torchvision.models import _utils


def resnet18(replace_stride_with_dilation=None, weights=None, norm_layer=None):
    assert weights is None, "the stub has no pretrained weights"
    resnet = ResNet("resnet18", norm_layer or nn.BatchNorm2d)
    resnet.avgpool = nn.AdaptiveAvgPool2d(1)
    resnet.fc = nn.Linear(512, 1000)
    return resnet


__all__ = ["_utils", "resnet18"]
