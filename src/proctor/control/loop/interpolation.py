"""Linear sub-steps between the actions of a policy, so that a robot moves smoothly."""

from __future__ import annotations

from collections import deque

from proctor.robots.base import Action


class ActionInterpolator:
    """Turns each action of a policy into ``multiplier`` targets, for a faster loop.

    The targets of an action lie on the line from the action before to this one. The first action of
    an episode has nothing before it, and is sent as it is.
    """

    def __init__(self, multiplier: int) -> None:
        self._multiplier = multiplier
        self._targets: deque[Action] = deque()
        self._last: Action | None = None

    @property
    def needs_action(self) -> bool:
        """Whether the next target needs a new action of the policy."""
        return not self._targets

    def add(self, action: Action) -> None:
        """Queue the targets that lead to ``action``."""
        start, count = self._last, self._multiplier
        if start is None:
            self._targets.append(action)
        else:
            self._targets.extend(between(start, action, n / count) for n in range(1, count + 1))
        self._last = action

    def next_target(self) -> Action:
        """Return the next target and remove it from the queue."""
        return self._targets.popleft()

    def reset(self) -> None:
        """Forget the last action: a new episode begins, or a person has moved the robot."""
        self._targets.clear()
        self._last = None


def between(start: Action, end: Action, share: float) -> Action:
    """Return the pose at ``share`` of the way to ``end``, and exactly ``end`` at 1.

    A channel that ``start`` lacks has its value of ``end`` at once.
    """
    if share == 1:
        return dict(end)
    return {
        name: start.get(name, value) + (value - start.get(name, value)) * share
        for name, value in end.items()
    }
