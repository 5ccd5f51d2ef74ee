"""Checks whether a policy's chunks are long enough for an inference latency.

With a latency of N steps the robot executes N more actions of the old chunk while the policy
computes the next one. Evaluation, training and policy servers use the same check.
"""

from __future__ import annotations

from proctor.errors import UsageError
from proctor.policies.base import PolicyConfig

_MORE = "or execute more actions per chunk (--policy.n_action_steps)"


def check_latency(steps: int, policy: str, executed: int, *, is_stateful: bool = False) -> None:
    """Refuse a latency that is longer than the executed part of a chunk.

    ``executed`` is the number of actions executed before the next inference. A policy that
    ``is_stateful`` needs its last reply as input, so the reply must arrive before the next query.
    """
    if not steps:
        return
    subject = f"latency_steps={steps}: {policy} executes"
    if executed == 1:
        raise UsageError(
            f"{subject} one action per inference, so no old chunk is left to execute meanwhile; "
            f"set the latency to 0, {_MORE}",
            code="policy.latency-too-long",
        )
    if steps >= executed:
        raise UsageError(
            f"{subject} {executed} actions of a chunk, fewer than the latency needs; choose "
            f"at most {executed - 1}, {_MORE}",
            code="policy.latency-too-long",
        )
    if is_stateful and steps > executed - steps:
        raise UsageError(
            f"{subject} {executed} actions of a chunk and needs its previous reply, which would "
            f"arrive too late; choose at most {executed // 2}, {_MORE}",
            code="policy.latency-too-long",
        )


def check_config_latency(config: PolicyConfig) -> None:
    """Check a config's own ``latency_steps``, if the config states ``replan_steps``."""
    if config.replan_steps is not None:
        steps = config.latency_steps or 0
        check_latency(steps, config.type, config.replan_steps, is_stateful=config.is_stateful)
