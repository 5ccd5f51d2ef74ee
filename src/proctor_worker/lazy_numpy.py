"""numpy, imported at its first use: Proctor's help texts import modules of this package."""

import importlib
from typing import Any


class _LazyNumpy:
    """Stands for the module numpy."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(importlib.import_module("numpy"), name)
        setattr(self, name, value)  # the next use finds it here
        return value


np = _LazyNumpy()
