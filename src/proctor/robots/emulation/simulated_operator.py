"""A simulated person who moves an arm's joints during its calibration."""

from __future__ import annotations

from collections.abc import Sequence

from proctor.robots.base import Operator
from proctor.robots.emulation.arm_models import ARM_MODELS
from proctor.robots.emulation.cell import cell_for, parse_port

_SWEEP = 40
"""Positions on the way from the middle to one end, to the other end and back."""


class SimulatedOperator:
    """Holds the limp arm of a simulated port; shows instructions through ``screen``.

    It answers the first prompt with the arm in the middle of all ranges. Then every question
    whether Enter was pressed finds the joints a bit further, until all were at both ends.
    """

    def __init__(self, port: str, screen: Operator) -> None:
        self._screen = screen
        self._arm = cell_for(port).arm(port)
        self._ranges = ARM_MODELS[parse_port(port).device].ranges
        self._position = 0

    def tell(self, text: str) -> None:
        """Show a line."""
        self._screen.tell(text)

    def ask(self, text: str) -> str:
        """Show the prompt, put the arm in the middle and press Enter."""
        self._screen.tell(text)
        self._move_to(0.0)
        return ""

    def pressed_enter(self) -> bool:
        """Move on; return True when the sweep is over and the hand lets go."""
        self._position += 1
        if self._position > 2 * _SWEEP:
            self._arm.hand = None
            return True
        down, up = self._position / _SWEEP, self._position / _SWEEP - 1
        self._move_to(-down if self._position <= _SWEEP else up)
        return False

    def show_table(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Show a table in place of the table shown before."""
        self._screen.show_table(header, rows)

    def _move_to(self, share: float) -> None:
        """Hold all joints at a share of their ranges: -1 lowest, 0 middle, 1 highest."""
        pose = {
            name: (low + high) / 2 + share * (high - low) / 2
            for name, (low, high) in self._ranges.items()
        }
        self._arm.hold_by_hand(pose)
