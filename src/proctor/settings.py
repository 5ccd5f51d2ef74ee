"""Settings of config dataclasses: default, help text, marks, bounds and choices in one call.

    batch_size: int = setting(8, "samples per batch, in every process", least=1, most=10**6)
    task_ids: list[int] | None = setting(None, "ids of the tasks (default: all tasks)")

A text ends with the meaning of its default, where the default itself does not say it: None, empty,
or 0 for "no limit". It is written as the help prints it: ``(default: all tasks)``, or
``(required without dataset.root)``.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import field
from typing import Any


def setting(default: Any, text: str = "", *marks: Mapping[str, Any], **more: Any) -> Any:
    """Declare a field of a config with the metadata of its flag.

    Args:
        default: The default. Lists and maps are copied.
        text: What the flag does, with its unit, and the meaning of its default.
        marks: Metadata of ``proctor.fingerprint``, such as ``PRESENTATION``.
        more: Metadata by name, which ``config/command`` lists, such as ``placeholder``.
    """
    metadata = {**_help(text), **more}
    for mark in marks:
        metadata.update(mark)
    if isinstance(default, (list, dict)):
        return field(default_factory=lambda: deepcopy(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def _help(text: str) -> dict[str, str]:
    for start in (" (default: ", " (required"):
        said, found, meaning = text.partition(start)
        if found:
            prefix = "required" if start == " (required" else ""
            return {"help": said, "default_help": prefix + meaning[:-1]}
    return {"help": text} if text else {}
