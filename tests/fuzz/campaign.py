"""Runs many cases of one kind and collects the findings."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass, field

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import HypothesisWarning

from tests.fuzz.bounds import Taken
from tests.fuzz.checkpoints import good_checkpoints
from tests.fuzz.datasets import good_datasets
from tests.fuzz.kinds import KINDS, Kind
from tests.fuzz.sandbox import BrokenPromise, Sandbox, open_sandbox

_AT_ONCE = 500
"""Cases per Hypothesis run; its memory of tried cases gets costly beyond a few hundred."""


@dataclass
class Tally:
    """Number of cases, and the distinct findings."""

    cases: int = 0
    cpu_s: float = 0.0
    worst: Taken = field(default_factory=Taken)
    """Maximum resources of one connection, if measured."""
    findings: dict[str, str] = field(default_factory=dict)
    """First case of each distinct fault."""


@dataclass(frozen=True)
class Part:
    """Some cases of one kind."""

    kind: int
    cases: int
    seed: int


def run_part(part: Part) -> Tally:
    """Run one part in its own sandbox."""
    began = time.process_time()
    with open_sandbox() as sandbox:
        tally = attack(KINDS[part.kind], part.cases, part.seed, sandbox)
        tally.worst = sandbox.worst
    tally.cpu_s = time.process_time() - began
    return tally


def attack(kind: Kind, cases: int, first_seed: int, sandbox: Sandbox) -> Tally:
    """Run at least ``cases`` cases of ``kind``; the same seed gives the same cases."""
    if not sandbox.checkpoints:
        sandbox.checkpoints += good_checkpoints(sandbox.root / "checkpoints")
    if not sandbox.datasets:
        sandbox.datasets += good_datasets()
    tally = Tally()
    number = first_seed
    while tally.cases < cases and len(tally.findings) < 20:
        _some(kind, min(_AT_ONCE, cases - tally.cases), number, sandbox, tally)
        number += 1
    return tally


def _some(kind: Kind, cases: int, number: int, sandbox: Sandbox, tally: Tally) -> None:
    @seed(number)
    @settings(
        max_examples=cases,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @given(st.data())
    def run(data: st.DataObject) -> None:
        tally.cases += 1
        with sandbox.case():
            try:
                kind.attack(data.draw, sandbox)
            except BrokenPromise as broken:
                tally.findings.setdefault(broken.gist, str(broken))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HypothesisWarning)
        run()
