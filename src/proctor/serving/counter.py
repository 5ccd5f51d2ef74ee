"""What every protocol is served from: the desk, the policy's inputs, and what is said of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from proctor.errors import ProctorError
from proctor.machine.once import Once
from proctor.serving.desk import Answered, Desk, Guest
from proctor.serving.inputs import Inputs
from proctor.wire.records import About, Ask


@dataclass(frozen=True)
class Counter:
    """A policy, as those who serve it need it."""

    desk: Desk
    inputs: Inputs
    about: About
    once: Once = field(default_factory=Once)
    """Says what clients' names stand for."""

    @contextlib.contextmanager
    def guest(self) -> Iterator[Guest]:
        """Enter as a guest, and leave."""
        guest = self.desk.enter()
        try:
            yield guest
        finally:
            self.desk.leave(guest)

    async def answer(self, guest: Guest, ask: Ask, aliases: Mapping[str, str]) -> Answered:
        """Return the answer to a question.

        Raises:
            ProctorError: it cannot be answered, in one line for whoever asked.
        """
        rows = self.inputs.rows(ask, aliases)
        self._say_what_is_what(ask, aliases)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answered] = loop.create_future()

        def tell(said: Answered | ProctorError) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(_settle, answer, said)

        self.desk.ask(guest, ask, rows, tell)
        return await answer

    def _say_what_is_what(self, ask: Ask, aliases: Mapping[str, str]) -> None:
        """Print which of a stranger's names stand for what: only its user knows if that is so."""
        if ask.episode is not None:
            return
        known = ask.observation
        taken = ", ".join(f"{name} is {key}" for key, name in aliases.items() if key not in known)
        if taken:
            self.once.say(f"a client's {taken}")

    def see(self, guest: Guest, ask: Ask, aliases: Mapping[str, str]) -> None:
        """Take note of what is seen, without an answer.

        Raises:
            WireError: it is not what the policy looks at.
        """
        self.desk.see(guest, self.inputs.rows(ask, aliases))

    def health(self) -> dict[str, Any]:
        """Return how it goes."""
        desk = self.desk
        mean = desk.answered / desk.batches if desk.batches else None
        return {"status": "ok", "answered": desk.answered, "batches": desk.batches, "batch": mean}


def _settle(answer: asyncio.Future[Answered], said: Answered | ProctorError) -> None:
    """Hand an answer to whoever waits for it, if somebody still does."""
    if answer.done():
        return
    if isinstance(said, Answered):
        answer.set_result(said)
    else:
        answer.set_exception(said)
