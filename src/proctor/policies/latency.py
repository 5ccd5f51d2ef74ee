"""Whether a policy has something to play while it thinks: one answer, wherever a latency is given.

Asked by evaluations of one or several latencies, by trainings that are played, and of servers.
"""

from __future__ import annotations

from proctor.errors import UsageError
from proctor.policies.base import PolicyConfig

_MORE = "or let it play more (--policy.n_action_steps)"


def check_latency(steps: int, policy: str, played: int, *, is_stateful: bool = False) -> None:
    """Refuse a latency that no chunk lasts for, or whose answers come after the next question.

    ``played`` is the number of actions executed before the next inference. A policy that
    ``is_stateful`` needs its last reply, so a robot could not ask it before that reply is there.

    Raises:
        UsageError: with the longest latency that goes.
    """
    if not steps:
        return
    said = f"latency_steps={steps}: {policy} plays"
    if played == 1:
        raise UsageError(
            f"{said} one action at a time, so there is no old chunk to play while it thinks; leave "
            f"the latency out, {_MORE}"
        )
    if steps >= played:
        raise UsageError(
            f"{said} {played} actions of a chunk, which are over before the next one comes; choose "
            f"at most {played - 1}, {_MORE}"
        )
    if is_stateful and steps > played - steps:
        raise UsageError(
            f"{said} {played} actions of a chunk, and what it recalls of the last one would not "
            f"have come yet; choose at most {played // 2}, {_MORE}"
        )


def check_lasting(config: PolicyConfig) -> None:
    """Refuse a config's own latency, where the config says how much is played.

    Raises:
        UsageError: as ``check_latency``.
    """
    if config.replan_steps is not None:
        steps = config.latency_steps or 0
        check_latency(steps, config.type, config.replan_steps, is_stateful=config.is_stateful)
