"""Progress line of an actor that is connected to a learner of another process or machine."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from rich.console import Console

from proctor.callbacks.progress import ProgressLine
from proctor.rl.link.links import InteractionMessage

_RECENT = 20
"""Episodes whose reward is averaged."""


class ActorProgress:
    """Shows steps, episodes, reward and interventions."""

    def __init__(self, console: Console, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self._line = ProgressLine(console)
        self._recent: deque[InteractionMessage] = deque(maxlen=_RECENT)
        self._episodes = 0
        self._began: tuple[float, int] | None = None
        """Time and steps at the end of the first episode."""
        self.text = ""

    def say(self, text: str) -> None:
        """Print a line above the progress line."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def on_episode(self, message: InteractionMessage, pending: int) -> None:
        """Show an episode's end; ``pending`` transitions wait for the learner's answer."""
        self._episodes += 1
        self._recent.append(message)
        n = len(self._recent)
        parts = [
            f"step {message.interaction_step:,}",
            f"{self._episodes:,} episode{'s' * (self._episodes != 1)}",
            f"reward {sum(one.episodic_reward for one in self._recent) / n:.3g}",
            self._rate(message.interaction_step),
        ]
        if helped := sum(one.intervention_rate for one in self._recent) / n:
            parts.append(f"interventions {helped:.0%}")
        if pending:
            parts.append(f"{pending:,} transitions not yet stored")
        self.text = "  ".join(part for part in parts if part)
        self._line.show(self.text)

    def close(self) -> None:
        """Leave the last text on the screen."""
        self._line.close(self.text)

    def _rate(self, steps: int) -> str:
        now = self._clock()
        if self._began is None:
            self._began = now, steps
        began, first = self._began
        return f"{(steps - first) / (now - began):,.1f} steps/s" if now > began else ""
