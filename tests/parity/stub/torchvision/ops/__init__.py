from torchvision.ops import misc

__all__ = ["misc"]
