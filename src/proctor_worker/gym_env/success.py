"""Success rules of gymnasium environments: ``--env.success``."""

import re
from dataclasses import dataclass
from enum import Enum
from typing import Any, Mapping, NamedTuple, Optional, Tuple

from proctor_worker.boundary import WrongValue, as_numbers
from proctor_worker.records import Refused

DEFAULT = "info.is_success"
CHOICES = (
    "info.KEY, info.KEY>=N, terminated, truncated, reward>=N, return>=N, each also with at_end, or "
    "none"
)


class SuccessSource(Enum):
    """The value that a success rule reads."""

    INFO = "info"
    TERMINATED = "terminated"
    TRUNCATED = "truncated"
    """The episode lasted until the horizon."""
    REWARD = "reward"
    RETURN = "return"
    """The return of the whole episode, judged at its end."""
    NONE = "none"
    """No success rule: there are rewards only."""


_TERMINATED, _TRUNCATED = SuccessSource.TERMINATED, SuccessSource.TRUNCATED
_REWARD, _RETURN, _NONE = SuccessSource.REWARD, SuccessSource.RETURN, SuccessSource.NONE
"""Names for every step: Python 3.8 takes long to find a member of an enum."""


class SuccessInputs(NamedTuple):
    """Values of a step that success may depend on."""

    reward: float
    episode_return: float
    """Sum of all rewards so far."""
    terminated: bool
    ended: bool
    """Whether the environment or the horizon has ended the episode."""
    info: Mapping[str, Any]


@dataclass(frozen=True)
class SuccessRule:
    """Rule that decides from a step whether the task is solved."""

    source: SuccessSource
    path: Tuple[str, ...] = ()
    """The key inside info, level by level."""
    threshold: Optional[float] = None
    at_end: bool = False
    """Whether only the last step of an episode counts."""

    @property
    def judges(self) -> bool:
        """Whether there is a rule at all."""
        return self.source is not _NONE

    def judge(self, inputs: SuccessInputs) -> Optional[bool]:
        """Return whether the task is solved; None if info lacks the key, or without a rule.

        Raises:
            WrongValue: the value in info is neither a truth value nor, for a threshold, a number.
        """
        solved = self._judge(inputs)
        if solved is None or inputs.ended or not self.at_end:
            return solved
        return False

    def _judge(self, inputs: SuccessInputs) -> Optional[bool]:
        least = 0.0 if self.threshold is None else self.threshold
        source = self.source
        if source is _TERMINATED:
            return inputs.terminated
        if source is _TRUNCATED:
            return inputs.ended and not inputs.terminated
        if source is _REWARD:
            return inputs.reward >= least
        if source is _RETURN:
            return inputs.ended and inputs.episode_return >= least
        if source is _NONE:
            return None
        value: Any = inputs.info
        for name in self.path:
            if not isinstance(value, Mapping) or name not in value:
                return None
            value = value[name]
        if value is None:
            return None
        return _is_true(value, self.threshold, "info." + ".".join(self.path))


def _is_true(value: Any, least: Optional[float], name: str) -> bool:
    """Whether a value of info means success: true, large enough, or enough names of subgoals.

    Raises:
        WrongValue: it is not a number, or without a threshold neither a bool nor 0 or 1.
    """
    if value is True or value is False:
        return value if least is None else value >= least
    named = isinstance(value, (list, tuple, set, frozenset))
    if named and all(isinstance(item, str) for item in value):
        return len(value) >= (1 if least is None else least)
    numbers = as_numbers(value, name)
    allowed = (numbers == 0) | (numbers == 1) if least is None else numbers == numbers  # not NaN
    if not allowed.all():
        kind = "a bool, 0 or 1" if least is None else "a number"
        raise WrongValue("%s is %.60r (%s), not %s" % (name, value, type(value).__name__, kind))
    return bool(numbers.size and (numbers >= (1 if least is None else least)).all())


def parse_success(text: str) -> SuccessRule:
    """Parse ``--env.success``.

    Raises:
        Refused: the text is not a rule.
    """
    text = text.strip()
    rule, at_end, _ = text.partition("at_end")
    if at_end and text.endswith("at_end") and rule[-1:] in ("", " ", ","):
        found = _parse(rule.strip(" ,") or DEFAULT, text)
        return SuccessRule(found.source, found.path, found.threshold, at_end=found.judges)
    return _parse(text, text)


def _parse(rule: str, text: str) -> SuccessRule:
    if rule in ("terminated", "truncated", "none"):
        return SuccessRule(SuccessSource(rule))
    key = re.fullmatch(r"info((?:\.[^.\s>]+)+)\s*(?:>=\s*(\S+))?", rule)
    if key:
        path = tuple(key[1].split(".")[1:])
        return SuccessRule(SuccessSource.INFO, path, None if key[2] is None else _number(key[2]))
    sum_or_step = re.fullmatch(r"(reward|return)\s*>=\s*(\S+)", rule)
    if sum_or_step:
        return SuccessRule(SuccessSource(sum_or_step[1]), threshold=_number(sum_or_step[2]))
    raise Refused(
        f"--env.success: {text!r} is not a rule (choose {CHOICES})", code="flag.invalid-value"
    )


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise Refused(
            f"--env.success: {text!r} is not a number", code="flag.invalid-value"
        ) from None
