"""The check every action chunk passes before it reaches a simulator, wherever the policy runs."""

from __future__ import annotations

import numpy as np

from proctor.errors import PolicyError, bounded
from proctor.features import ActionSpec, Array
from proctor.policies.base import Batch, Policy, Query


def checked_chunks(policy: Policy, batch: Batch, action: ActionSpec) -> Array:
    """Ask the policy and return its actions as float32 [B, n_action_steps, action size].

    Raises:
        PolicyError: it raised, or gave a wrong shape or a number that is not finite; names the
            policy, the task and the step.
    """
    try:
        chunks = np.asarray(policy.act(batch), dtype=np.float32)
    except (Exception, SystemExit) as error:  # its thread would end, and the engine wait for ever
        what = f"raised {type(error).__name__}: {error}"
        raise _policy_error(policy, batch.queries[0], what) from error
    wanted = (len(batch.queries), policy.n_action_steps, action.size)
    if chunks.shape != wanted:
        what = f"returned actions of shape {chunks.shape} instead of {wanted}"
        raise _policy_error(policy, batch.queries[0], what)
    if not np.isfinite(chunks).all():
        finite = np.isfinite(chunks).all(axis=(1, 2))
        query = batch.queries[int(np.argmin(finite))]
        raise _policy_error(policy, query, "returned NaN or infinite actions")
    return chunks


def _policy_error(policy: Policy, query: Query, what: str) -> PolicyError:
    what = " ".join(bounded(what).split())
    return PolicyError(f"policy {policy.name!r} {what} on {query.spec} at step {query.step}")
