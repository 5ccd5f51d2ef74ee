"""Whether a policy and an interface fit: asked before anything starts, answered with the fix.

Evaluation asks it of a benchmark; a training of a dataset, a server of whoever calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from proctor.errors import SpecMismatch, did_you_mean
from proctor.features import Interface


def offered_key(key: str, rename_map: Mapping[str, str]) -> str:
    """Return the interface's name for the policy's input ``key``."""
    return next((old for old, new in rename_map.items() if new == key), key)


def check_offered(inputs: Iterable[str], interface: Interface, asker: str) -> None:
    """Check that the interface offers every key of ``inputs``, as ``asker`` wants them.

    Raises:
        SpecMismatch: one that it does not, and what it may have been.
    """
    offered = interface.features
    for key in inputs:
        if key not in offered:
            near = did_you_mean(key, offered) or f" (choose from: {', '.join(offered)})"
            raise SpecMismatch(f"{asker}: {interface.name} offers no {key!r}{near}")
