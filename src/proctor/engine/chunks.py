"""Checks that every action chunk passes before it reaches a simulator."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from proctor.errors import EpisodeStateLost, PolicyError, ProtocolError, UsageError, truncate_text
from proctor.features import ActionSpec, Array
from proctor.policies.base import Batch, Policy, Query
from proctor_worker.boundary import WrongValue, as_numbers


def checked_chunks(policy: Policy, batch: Batch, action: ActionSpec) -> Array | list[Array]:
    """Call the policy and return its actions as float32: a chunk [T, action size] per query."""
    chunks = shaped_chunks(policy, batch, action)
    if not isinstance(chunks, list) and np.isfinite(chunks).all():
        return chunks
    for query, chunk in zip(batch.queries, chunks, strict=True):
        if not np.isfinite(chunk).all():
            raise _policy_error(
                policy, "returned NaN or infinite actions", _place(query), "policy.not-finite"
            )
    return chunks


def shaped_chunks(policy: Policy, batch: Batch, action: ActionSpec) -> Array | list[Array]:
    """Call the policy and check shapes only."""
    first = batch.queries[0]
    with blame_policy(policy, _place(first)):
        acted = policy.act(batch)
        if policy.spec.n_action_steps is None:
            chunks: Array | list[Array] = [_as_float32(chunk) for chunk in acted]
        else:
            chunks = _as_float32(acted)
    if isinstance(chunks, list):
        _check_each(policy, batch, chunks, action)
        return chunks
    wanted = (len(batch.queries), policy.spec.n_action_steps, action.size)
    if chunks.shape != wanted:
        what = f"returned actions of shape {chunks.shape} instead of {wanted}"
        raise _policy_error(policy, what, _place(first), "policy.wrong-shape")
    return chunks


def _as_float32(actions: Any) -> Array:
    return np.asarray(as_numbers(actions, "its action chunk"), dtype=np.float32)


def _check_each(policy: Policy, batch: Batch, chunks: list[Array], action: ActionSpec) -> None:
    """Check chunks of different lengths."""
    if len(chunks) != len(batch.queries):
        what = f"returned {len(chunks)} chunks for {len(batch.queries)} queries"
        raise _policy_error(policy, what, _place(batch.queries[0]), "policy.wrong-shape")
    for query, chunk in zip(batch.queries, chunks, strict=True):
        if chunk.ndim != 2 or len(chunk) < 1 or chunk.shape[1] != action.size:
            what = f"returned a chunk of shape {chunk.shape} instead of (1 or more, {action.size})"
            raise _policy_error(policy, what, _place(query), "policy.wrong-shape")


@contextlib.contextmanager
def blame_policy(policy: Policy, where: str) -> Iterator[None]:
    """Turn what the policy raises into a PolicyError that names the policy and ``where``."""
    try:
        yield
    except EpisodeStateLost:
        raise
    except WrongValue as wrong:
        raise _policy_error(policy, str(wrong), where, "policy.wrong-dtype") from None
    except (ProtocolError, UsageError) as error:  # one line: no traceback needed
        text = f"policy {policy.spec.name!r}: {error} {where}"
        raise PolicyError(text, code=error.code) from None
    except (Exception, SystemExit) as error:
        what = f"raised {type(error).__name__}: {error}"
        raise _policy_error(policy, what, where, "policy.raised") from error


def _place(query: Query) -> str:
    return f"on {query.spec} at step {query.step}"


def _policy_error(policy: Policy, what: str, where: str, code: str) -> PolicyError:
    what = " ".join(truncate_text(what).split())
    return PolicyError(f"policy {policy.spec.name!r} {what} {where}", code=code)
