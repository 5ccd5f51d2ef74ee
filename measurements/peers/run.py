"""Evaluation compared with LeRobot and vla-eval: the same work by turns, one table.

    python -m measurements peers [metaworld pusht replan diffusion batch libero vla start]
        [--ours] [--install]

All groups but `vla` are compared with LeRobot; `libero` is one task of libero_spatial with two
cameras and ACT. `vla` is the same task with vla-eval, without a container; both sides execute the
same fixed actions in chunks. Without names it runs the groups of all installed peers: 20 minutes on
two idle cores. ``--install`` installs both peers first (`make bench-peers`); ``--ours`` runs
Proctor alone. The table is Markdown, for docs/measurements.md.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from measurements.command import machine, make_parser
from measurements.peers.agreement import agreement
from measurements.peers.cases import CASES, STARTS, Case, Peer
from measurements.peers.checkpoints import write_checkpoints
from measurements.peers.install import install, peer_python, vla_python
from measurements.peers.runners import (
    Outcome,
    peer_versions,
    run_lerobot,
    run_proctor,
    run_vla_eval,
)
from proctor.benchmarks.libero.assets import find_assets

HEAD = (
    "| | wall | past start-up | episodes/s | steps/s | renders | peak memory | ratio | target |\n"
    "|---|---|---|---|---|---|---|---|---|"
)
PYTHONS = {Peer.LEROBOT: peer_python, Peer.VLA_EVAL: vla_python}
INSTALL = "run: make bench-peers"
START_HEAD = (
    "| command to the end of the first step | LeRobot | Proctor | ratio |\n|---|---|---|---|"
)


def compare(
    case: Case, checkpoints: dict[str, Path], folder: Path, *, alone: bool = False
) -> tuple[Outcome, Outcome]:
    """Run a case with the peer and with Proctor; ``alone``: with Proctor in both places."""
    folder.mkdir()
    checkpoint = checkpoints.get(case.policy)
    if alone:
        ours = run_proctor(case, checkpoint, folder / "proctor")
        return ours, ours
    if case.peer is Peer.VLA_EVAL:
        theirs = run_vla_eval(case, folder / "vla-eval")
        return theirs, run_proctor(case, None, folder / "proctor")
    assert checkpoint is not None
    theirs = run_lerobot(case, checkpoint, folder / "lerobot")
    return theirs, run_proctor(case, checkpoint, folder / "proctor")


def row(name: str, outcome: Outcome, ratio: str = "", target: str = "") -> str:
    usage = outcome.usage
    cells = [
        name,
        f"{usage.wall_s:.1f} s",
        f"{outcome.past_start_s:.1f} s",
        f"{len(outcome.episodes) / usage.wall_s:.3f}",
        f"{outcome.steps / usage.wall_s:.1f}",
        f"{outcome.renders}",
        f"{usage.peak_mb:.0f} MB",
        ratio,
        target,
    ]
    return f"| {' | '.join(cells)} |"


def speed(names: list[str], checkpoints: dict[str, Path], folder: Path) -> list[str]:
    """Print the table of all cases; return how well their episodes agree."""
    print(HEAD, flush=True)
    remarks = []
    for name in names:
        for number, case in enumerate(CASES[name]):
            theirs, ours = compare(case, checkpoints, folder / f"{name}-{number}")
            whole = theirs.usage.wall_s / ours.usage.wall_s
            past_start = theirs.past_start_s / ours.past_start_s
            ratio = f"**{whole:.2f}x**, past start-up {past_start:.1f}x"
            print(row(f"{case.name}: {case.peer.value}", theirs))
            print(row("&nbsp;&nbsp;Proctor", ours, ratio, f">= {case.target:g}x"), flush=True)
            remarks.append(f"- {case.name}: {agreement(case, theirs.episodes, ours.episodes)}")
    return remarks


def ours_alone(names: list[str], checkpoints: dict[str, Path], folder: Path, *, tiny: bool) -> None:
    """Print the table of Proctor alone."""
    print(HEAD, flush=True)
    for name in names:
        for number, case in enumerate(CASES[name][: 1 if tiny else None]):
            if tiny:
                case = replace(case, horizon=2, n_episodes=1, video=False)
            ours, _ = compare(case, checkpoints, folder / f"{name}-{number}", alone=True)
            print(row(case.name, ours), flush=True)


def starts(checkpoints: dict[str, Path], folder: Path) -> None:
    """Print the time from the command to the end of the first step."""
    print(f"\n{START_HEAD}", flush=True)
    for number, case in enumerate(STARTS):
        theirs, ours = compare(case, checkpoints, folder / f"start-{number}")
        cells = [
            f"{case.benchmark} act, batch {case.batch_size}",
            f"{theirs.first_step_s:.1f} s",
            f"{ours.first_step_s:.1f} s",
            f"**{theirs.first_step_s / ours.first_step_s:.2f}x**",
        ]
        print(f"| {' | '.join(cells)} |", flush=True)


def peer_of(name: str) -> Peer:
    """Return the peer of a group of cases."""
    return CASES[name][0].peer if name in CASES else Peer.LEROBOT


def installed() -> set[Peer]:
    """Return the peers that have a venv."""
    return {peer for peer, python in PYTHONS.items() if python().exists()}


def require(names: Sequence[str], peers: set[Peer]) -> None:
    """Stop before the first case if a peer or LIBERO's assets are missing.

    Raises:
        SystemExit: with the command that installs them.
    """
    for peer in peers - installed():
        raise SystemExit(f"{peer.value} is not in {PYTHONS[peer]().parents[1]}; {INSTALL}")
    if any(case.benchmark == "libero" for name in names for case in CASES.get(name, ())):
        try:
            find_assets(None)
        except FileNotFoundError as missing:
            raise SystemExit(
                f"LIBERO's assets are not in {missing}; run: make libero-assets"
            ) from None


def main(words: Sequence[str]) -> None:
    """Run the named groups, or those of all installed peers."""
    known = [*CASES, "start"]
    parser = make_parser("peers", __doc__, known)
    parser.add_argument("--ours", action="store_true", help="Proctor alone")
    parser.add_argument("--install", action="store_true", help="install the peers first")
    asked = parser.parse_args(words)
    if asked.install:
        install()
    there = set(Peer) if asked.ours else installed()
    names = asked.parts or [name for name in known if peer_of(name) in there]
    peers = set() if asked.ours else {peer_of(name) for name in names} or {Peer.LEROBOT}
    require(names, peers)
    print(machine())
    print(*(peer_versions(peer) for peer in Peer if peer in peers), sep="\n")
    threads = os.environ.get("OMP_NUM_THREADS", "torch's default")
    print(f"threads: {threads}; load before: {os.getloadavg()[0]:.2f}\n")
    cases = [name for name in names if name in CASES]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        checkpoints = write_checkpoints(folder / "checkpoints")
        if asked.ours:
            ours_alone(cases, checkpoints, folder, tiny=asked.tiny)
        else:
            remarks = speed(cases, checkpoints, folder)
            if "start" in names:
                starts(checkpoints, folder)
            print("\nEpisode by episode:\n", *remarks, sep="\n")
    print(f"\nload after: {os.getloadavg()[0]:.2f}")
