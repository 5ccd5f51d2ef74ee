"""Prints the flags of an installed LeRobot's evaluation, with their defaults: JSON.

`python tests/parity/lerobot_flags_side.py > tests/unit/config/data/lerobot_eval_flags.json`, with
the Python that LeRobot is installed for.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import pkgutil
from enum import Enum
from importlib.metadata import version
from typing import Any


def plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value if value is None or isinstance(value, int | float | str) else str(value)


def defaults(cls: Any) -> dict[str, Any]:
    """Every flag of a dataclass; what has no default is null."""
    found = {}
    for field in dataclasses.fields(cls):
        value = None if field.default is dataclasses.MISSING else field.default
        if field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        if field.init:
            found[field.name] = plain(value)
    return found


if __name__ == "__main__":
    import lerobot.policies
    from lerobot.configs.default import EvalConfig
    from lerobot.configs.eval import EvalPipelineConfig
    from lerobot.configs.policies import PreTrainedConfig
    from lerobot.envs.configs import EnvConfig

    for module in pkgutil.iter_modules(lerobot.policies.__path__):
        if module.ispkg and module.name not in ("common", "rtc"):
            importlib.import_module(f"lerobot.policies.{module.name}.configuration_{module.name}")
    sections = ("policy", "env", "eval")
    top = {k: v for k, v in defaults(EvalPipelineConfig).items() if k not in sections}
    told = {
        "lerobot": version("lerobot"),
        "top": top,
        "eval": defaults(EvalConfig) | {"batch_size": 0},
        "env": {n: defaults(c) for n, c in sorted(EnvConfig.get_known_choices().items())},
        "policy": {n: defaults(c) for n, c in sorted(PreTrainedConfig.get_known_choices().items())},
    }
    print(json.dumps(told, separators=(",", ":")))
