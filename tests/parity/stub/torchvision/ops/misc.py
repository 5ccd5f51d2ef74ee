from proctor.policies.resnet import FrozenBatchNorm2d

__all__ = ["FrozenBatchNorm2d"]
