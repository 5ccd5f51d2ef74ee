"""The stop rule for several policies tried in turn: one is better than all others, for sure.

Every block tries each policy once on the same scene. For each ordered pair (i, j) a betting test
(``stopping.PairedTest``) collects evidence that i is better than j: its e-value reaches a threshold
t with probability at most 1/t, at any time, if i is not better than j.

With K policies, i is declared the best when its e-values against all others reach K / alpha. Let b
be a truly best policy. A wrong declaration of i != b needs the e-value of (i, b): K - 1 chances. If
b is tied with c, declaring b is wrong too, and needs that of (b, c): one more. Together at most
K * alpha / K = alpha, however often the rule looks. For two policies it is the test of --against.
"""

from __future__ import annotations

from collections.abc import Sequence

from proctor.stats.stopping import e_value
from proctor.types import Outcome

BETTER = "better"
"""The value of --eval.stop_when for this rule."""


class BestPolicy:
    """Counts wins of every policy over every other, block by block."""

    def __init__(self, names: Sequence[str], alpha: float) -> None:
        self._names = tuple(names)
        self._alpha = alpha
        self._blocks = 0
        self._wins = [[0] * len(names) for _ in names]  # [winner][loser]

    def on_block_end(self, outcomes: Sequence[Outcome]) -> None:
        """Count a complete block: the outcome of every policy, in the order of the names."""
        assert len(outcomes) == len(self._names)
        self._blocks += 1
        for i, of_i in enumerate(outcomes):
            for j, of_j in enumerate(outcomes):
                self._wins[i][j] += of_i is Outcome.SUCCESS and of_j.failed

    @property
    def best(self) -> int | None:
        """The number of the policy that is better than all others; None: undecided."""
        everyone = range(len(self._names))
        enough = len(self._names) / self._alpha
        for i in everyone if len(self._names) > 1 else ():
            evidence = [e_value(self._wins[i][j], self._wins[j][i]) for j in everyone if j != i]
            if min(evidence) >= enough:
                return i
        return None

    @property
    def decision(self) -> str | None:
        """Which policy is the best, and by how many wins; None: continue."""
        best = self.best
        if best is None:
            return None
        scores = ", ".join(
            f"{self._wins[best][j]} won to {self._wins[j][best]} lost against {name}"
            for j, name in enumerate(self._names)
            if j != best
        )
        return (
            f"{self._names[best]} is better at alpha {self._alpha:g} after {self._blocks} "
            f"block{'s' * (self._blocks != 1)}: {scores}"
        )
