"""Limits of the work for one pickle, counted while the pickle is read."""

from __future__ import annotations

from dataclasses import dataclass

from proctor.errors import ProtocolError

_MAX_STEPS = 40_000
"""Opcodes of a message, including storages inside it. A tensor takes about 90."""
_MAX_TEXT = 2**18


@dataclass
class Budget:
    """The remaining work for one message."""

    steps: int = _MAX_STEPS
    text: int = _MAX_TEXT

    def step(self) -> None:
        """Count one opcode.

        Raises:
            ProtocolError: the pickle has too many opcodes.
        """
        self.steps -= 1
        if self.steps < 0:
            raise ProtocolError(
                f"a pickle has more than {_MAX_STEPS} opcodes", code="protocol.too-large"
            )

    def charge_text(self, size: int) -> None:
        """Count the bytes of a text before it is decoded.

        Raises:
            ProtocolError: the pickle has too much text.
        """
        self.text -= size
        if self.text < 0:
            raise ProtocolError(
                f"a pickle has more than {_MAX_TEXT} bytes of text",
                code="protocol.too-large",
            )
