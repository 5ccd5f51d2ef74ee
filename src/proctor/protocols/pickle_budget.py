"""Limits of the work for one pickle, counted while the pickle is read."""

from __future__ import annotations

from dataclasses import dataclass

from proctor.errors import ProtocolError


@dataclass
class Budget:
    """The remaining work for one message."""

    steps: int = 40_000
    """Opcodes, including storages inside the message. A tensor takes about 90."""
    text: int = 2**18
    """Bytes of text."""
    nodes: int = 10_000
    """Objects of the result; a shared object counts at each occurrence."""

    def step(self) -> None:
        """Count one opcode."""
        self.steps -= 1
        if self.steps < 0:
            raise ProtocolError("a pickle has too many opcodes", code="protocol.too-large")

    def charge_text(self, size: int) -> None:
        """Count the bytes of a text before it is decoded."""
        self.text -= size
        if self.text < 0:
            raise ProtocolError("a pickle has too much text", code="protocol.too-large")

    def node(self) -> None:
        """Count one object of the result."""
        self.nodes -= 1
        if self.nodes < 0:
            raise ProtocolError("a pickle holds too many objects", code="protocol.too-large")
