"""Interventions: who takes over from the policy, and when.

NoIntervention       the policy always acts
ExpertIntervention   the benchmark's scripted expert, by count or when the value drops
TeleopIntervention   a person with a keyboard, a gamepad or a leader arm

Keys of a person: space takes over and hands back. Enter or right ends the episode with success, f
without. Left or r discards the episode and plays it again. Buttons of a gamepad press these keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from proctor.config.sections.online import InterventionSettings
from proctor.control.terminal.keys import ControlKey
from proctor.errors import UsageError
from proctor.features import Array, Expert, Observation
from proctor.robots.base import Action, KeyReader, Teleoperator

TAKE_OVER = "space"
SUCCESS_KEYS = ("enter", *ControlKey.END_EPISODE.value)
FAILURE_KEY = "f"
_GRIPPER, _GRIPPER_CLOSE = "gripper", "gripper.close"


@dataclass(frozen=True)
class InterventionSignal:
    """What a person or an expert wants in one step."""

    action: Array | None = None
    """The action to execute instead of the policy's; None: the policy acts."""
    success: bool = False
    """The person says that the task is done: reward 1, end of the episode."""
    failure: bool = False
    """The person ends the episode."""
    rerecord: bool = False
    """The episode is discarded and played again."""


class Intervention(Protocol):
    """A source of interventions during episodes."""

    needs_value: bool
    """Whether ``signal`` wants the policy's value."""
    is_repeatable: bool
    """Whether the same episode gets the same signals again; False for persons."""

    def begin(self, episode: int) -> None:
        """Prepare for an episode, numbered from 0."""

    def signal(self, step: int, value: float | None) -> InterventionSignal:
        """Return what to do in the episode's ``step``, counted from 0."""

    def close(self) -> None:
        """Disconnect devices."""


class NoIntervention:
    """Leaves every step to the policy."""

    needs_value = False
    is_repeatable = True

    def begin(self, episode: int) -> None:
        """Do nothing."""

    def signal(self, step: int, value: float | None) -> InterventionSignal:
        """Return nothing to do."""
        return InterventionSignal()

    def close(self) -> None:
        """Do nothing."""


class ScriptedEnv(Protocol):
    """An environment with a scripted expert (``SimOnlineEnv``)."""

    def privileged(self) -> Observation:
        """Return what the expert observes now."""

    def expert(self) -> Expert:
        """Return a fresh expert."""


class ExpertIntervention:
    """The benchmark's expert takes over in every n-th episode, or when the value is low."""

    is_repeatable = True

    def __init__(self, env: ScriptedEnv, settings: InterventionSettings) -> None:
        """Take the environment's expert."""
        env.expert()
        self._env, self._settings = env, settings
        self.needs_value = settings.below is not None
        self._expert: Expert | None = None
        self._is_planned = False
        self._left = 0

    def begin(self, episode: int) -> None:
        """Leave the episode to the policy, until the expert's turn comes."""
        every = self._settings.every
        self._is_planned = every > 0 and (episode + 1) % every == 0
        self._expert = None

    def signal(self, step: int, value: float | None) -> InterventionSignal:
        """Return the expert's action while it drives."""
        if self._expert is None and self._takes_over(step, value):
            self._expert, self._left = self._env.expert(), self._settings.steps
            self._is_planned = False
        if self._expert is None:
            return InterventionSignal()
        action = np.asarray(self._expert(self._env.privileged()), np.float32)
        self._left -= 1
        if self._left == 0:
            self._expert = None
        return InterventionSignal(action)

    def _takes_over(self, step: int, value: float | None) -> bool:
        below = self._settings.below
        is_low = below is not None and value is not None and value < below
        return step >= self._settings.after and (self._is_planned or is_low)

    def close(self) -> None:
        """Do nothing: the expert has no device."""


class TeleopIntervention:
    """A person takes over with a connected teleoperator."""

    needs_value = False
    is_repeatable = False

    def __init__(self, teleop: Teleoperator, names: Sequence[str] | None, keys: KeyReader) -> None:
        """Drive an environment whose action has dimensions ``names``."""
        self._teleop, self._keys = teleop, keys
        self._names = tuple(names or ())
        channels = {_channel(name) for name in self._names}
        missing = channels - set(teleop.action_features)
        if missing or not self._names:
            raise UsageError(
                f"--teleop.type={teleop.name} cannot drive this environment: it has "
                f"{', '.join(teleop.action_features) or 'no channels'}, the environment takes "
                f"{', '.join(self._names) or 'unnamed actions'}",
                code="rl.teleop-mismatch",
            )
        self._drives = False

    def begin(self, episode: int) -> None:
        """Leave the episode to the policy, until the person takes over."""
        self._drives = False
        self._keys.poll()

    def signal(self, step: int, value: float | None) -> InterventionSignal:
        """Return the person's wishes since the last step."""
        pressed = self._keys.poll()
        if pressed.count(TAKE_OVER) % 2:
            self._drives = not self._drives
            if self._drives:
                self._teleop.start_episode()
        # Read it in every step: a gamepad notices its buttons only then.
        action = to_vector(self._teleop.get_action(), self._names)
        return InterventionSignal(
            action=action if self._drives else None,
            success=any(key in SUCCESS_KEYS for key in pressed),
            failure=FAILURE_KEY in pressed,
            rerecord=any(key in ControlKey.RERECORD for key in pressed),
        )

    def close(self) -> None:
        """Disconnect the teleoperator."""
        self._teleop.disconnect()


def to_vector(action: Action, names: Sequence[str]) -> Array:
    """Return a teleoperator's action as float32 [A] in the order of ``names``.

    A dimension "gripper.close" has the opposite direction of LeRobot's "gripper" (0 closes).
    """
    values = [2.0 - action[_GRIPPER] if name == _GRIPPER_CLOSE else action[name] for name in names]
    return np.array(values, np.float32)


def _channel(name: str) -> str:
    return _GRIPPER if name == _GRIPPER_CLOSE else name
