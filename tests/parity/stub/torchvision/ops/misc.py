from proctor.policies.blocks.resnet import FrozenBatchNorm2d

__all__ = ["FrozenBatchNorm2d"]
