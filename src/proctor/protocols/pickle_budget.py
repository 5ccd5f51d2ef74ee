"""What reading one pickle may take, counted while it is read."""

from __future__ import annotations

from dataclasses import dataclass

from proctor.errors import ProtocolError

_MAX_STEPS = 40_000
"""Opcodes of a message, those of storages inside it included. A tensor takes about 90."""
_MAX_TEXT = 2**18


@dataclass
class Budget:
    """What one message may still take."""

    steps: int = _MAX_STEPS
    text: int = _MAX_TEXT

    def step(self) -> None:
        """Count a step.

        Raises:
            WireError: there were too many.
        """
        self.steps -= 1
        if self.steps < 0:
            raise ProtocolError(
                f"a pickle has more than {_MAX_STEPS} steps", code="protocol.too-large"
            )

    def charge_text(self, size: int) -> None:
        """Count a text before it is made.

        Raises:
            WireError: there is too much of it.
        """
        self.text -= size
        if self.text < 0:
            raise ProtocolError(
                f"the texts of a pickle are longer than {_MAX_TEXT} bytes",
                code="protocol.too-large",
            )
