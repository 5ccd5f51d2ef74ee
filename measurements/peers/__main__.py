"""The peers and Proctor side by side: the same work, one after the other, one table.

    python -m measurements.peers [metaworld pusht replan diffusion batch libero vla start]

All but `vla` are LeRobot's; `libero` is one task of libero_spatial with two cameras and ACT. `vla`
is the same task with vla-eval, without a container, both sides playing the same given actions in
chunks. Without names it runs all that is installed: 20 minutes on two quiet cores.
`make bench-peers` installs both peers first. The table is Markdown, for docs/performance.md.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from measurements.command import machine
from measurements.peers.agreement import agreement
from measurements.peers.cases import CASES, STARTS, Case, Peer
from measurements.peers.checkpoints import write_checkpoints
from measurements.peers.install import peer_python, vla_python
from measurements.peers.sides import (
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


def compare(case: Case, checkpoints: dict[str, Path], folder: Path) -> tuple[Outcome, Outcome]:
    folder.mkdir()
    if case.peer is Peer.VLA_EVAL:
        theirs = run_vla_eval(case, folder / "vla-eval")
        return theirs, run_proctor(case, None, folder / "proctor")
    checkpoint = checkpoints[case.policy]
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
    """Print the table of all cases; return what is to be said about their episodes."""
    print(HEAD, flush=True)
    remarks = []
    for name in names:
        for number, case in enumerate(CASES[name]):
            theirs, ours = compare(case, checkpoints, folder / f"{name}-{number}")
            whole = theirs.usage.wall_s / ours.usage.wall_s
            ratio = (
                f"**{whole:.2f}x**, past start-up {theirs.past_start_s / ours.past_start_s:.1f}x"
            )
            print(row(f"{case.name}: {case.peer.value}", theirs))
            print(
                row("&nbsp;&nbsp;Proctor", ours, ratio, f">= {case.target:g}x"),
                flush=True,
            )
            remarks.append(f"- {case.name}: {agreement(case, theirs.episodes, ours.episodes)}")
    return remarks


def starts(checkpoints: dict[str, Path], folder: Path) -> None:
    """Print how long it takes until something happens."""
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
    """Return whom a group of cases is compared with."""
    return CASES[name][0].peer if name in CASES else Peer.LEROBOT


def installed() -> set[Peer]:
    """Return the peers that have a venv."""
    return {peer for peer, python in PYTHONS.items() if python().exists()}


def require_assets() -> None:
    """Stop now rather than after other cases if LIBERO cannot run."""
    try:
        find_assets(None)
    except FileNotFoundError as missing:
        raise SystemExit(f"LIBERO's assets are not in {missing}; run: make libero-assets") from None


def main(names: list[str]) -> None:
    known = [*CASES, "start"]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SystemExit(f"unknown: {', '.join(unknown)} (choose from: {', '.join(known)})")
    names = names or [name for name in known if peer_of(name) in installed()]
    peers = {peer_of(name) for name in names} or {Peer.LEROBOT}
    for peer in peers - installed():
        raise SystemExit(f"{peer.value} is not in {PYTHONS[peer]().parents[1]}; {INSTALL}")
    if any(case.benchmark == "libero" for name in names for case in CASES.get(name, ())):
        require_assets()
    print(machine())
    print(*(peer_versions(peer) for peer in Peer if peer in peers), sep="\n")
    threads = os.environ.get("OMP_NUM_THREADS", "as torch likes")
    print(f"threads: {threads}; load before: {os.getloadavg()[0]:.2f}\n")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        checkpoints = write_checkpoints(folder / "checkpoints")
        remarks = speed([name for name in names if name in CASES], checkpoints, folder)
        if "start" in names:
            starts(checkpoints, folder)
        print("\nEpisode by episode:\n", *remarks, sep="\n")
    print(f"\nload after: {os.getloadavg()[0]:.2f}")


if __name__ == "__main__":
    main(sys.argv[1:])
