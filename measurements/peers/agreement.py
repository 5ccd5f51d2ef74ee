"""Check whether both sides report the same episodes, and explain differences."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from functools import cache

from measurements.peers.cases import Case
from measurements.peers.install import peer_python
from measurements.peers.runners import Episode

CLOSE = 1e-3
"""Relative tolerance. Two builds of torch round differently, and contacts amplify that."""


def agreement(case: Case, theirs: Sequence[Episode], ours: Sequence[Episode]) -> str:
    """Return one line: how many episodes agree in success and rewards, and why others differ."""
    pairs = list(zip(theirs, ours, strict=True))
    same = sum(_agree(one, other) for one, other in pairs)
    worst = max(_apart(one.sum_reward, other.sum_reward) for one, other in pairs)
    rewarded = any(episode.max_reward for episode in [*theirs, *ours])
    about = f"sums of rewards within {worst:.1e}" if rewarded else "no success and no reward in any"
    if all(episode.digest for episode in [*theirs, *ours]):
        about += "; compared by the last bit of the physics they ended in"
    said = f"{same} of {len(pairs)} agree ({about})"
    if same == len(pairs):
        return said
    ended_early = any(episode.success for episode in [*theirs, *ours])
    why = " ".join(reasons(case, ended_early=ended_early))
    return f"{said}; {why or 'UNEXPLAINED: ' + _shown(pairs)}"


def _agree(theirs: Episode, ours: Episode) -> bool:
    return (
        theirs.success == ours.success
        and _apart(theirs.sum_reward, ours.sum_reward) < CLOSE
        and _apart(theirs.max_reward, ours.max_reward) < CLOSE
        and (theirs.digest is None or theirs.digest == ours.digest)
    )


def _apart(one: float, other: float) -> float:
    return abs(one - other) / max(abs(one), abs(other), 1e-9)


def _shown(pairs: Sequence[tuple[Episode, Episode]]) -> str:
    return ", ".join(
        f"{theirs.sum_reward:.4f} / {ours.sum_reward:.4f}"
        + (" with other physics" if theirs.digest != ours.digest else "")
        for theirs, ours in pairs
        if not _agree(theirs, ours)
    )


def reasons(case: Case, *, ended_early: bool) -> list[str]:
    """Return why episodes may differ in this case, one sentence each."""
    found = []
    if case.policy.startswith("diffusion"):
        found.append(
            "LeRobot draws Diffusion's noise from one global generator, in the order of calls; "
            "here each episode has its own."
        )
    if case.benchmark == "metaworld" and lerobot_version() < (0, 6):
        found.append(
            "LeRobot before 0.6 does not seed where Meta-World's objects are (the global "
            "generator places them); here the episode's seed does."
        )
    if case.batch_size > 1 and ended_early:
        found.append(
            "With a batch LeRobot goes on after an episode has ended and adds the next reward."
        )
    return found


@cache
def lerobot_version() -> tuple[int, ...]:
    """Return the peer's version, as numbers."""
    asked = "from importlib.metadata import version; print(version('lerobot'))"
    done = subprocess.run([peer_python(), "-c", asked], capture_output=True, text=True, check=True)  # noqa: S603  our own command
    return tuple(int(part) for part in done.stdout.strip().split(".")[:2])
