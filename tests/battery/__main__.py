"""Measure every service under every attack: python -m tests.battery [--seconds=3] [--rate=50].

One niced process strikes RATE times a second while a good client asks. The same load by good
clients is the reference of its latency; for large messages, the same by whole ones. Exit code 1: a
good client failed, or waited twice as long.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass

from tests.battery.attacker import LARGE, WELL_FORMED
from tests.battery.attacks import ATTACKS
from tests.battery.running import REPOSITORY, Child, running
from tests.battery.services import MIB, SERVICES, Service

MOST_RATIO = 2.0
_PAUSE_S, _MOST_S = 0.01, 20.0


@dataclass(frozen=True)
class Measured:
    """What one load did to a service, and to its good client."""

    answered: int
    failed: int
    p99_s: float
    strikes: int
    refused: int
    growth: int
    descriptors: int


def measured(child: Child, name: str, load: str, seconds: float, rate: float) -> Measured:
    """Ask as a good client while another process strikes."""
    service, port, failed = SERVICES[name], child.ports[name], 0
    times: list[float] = []
    words = [sys.executable, "-m", "tests.battery.attacker", name, load, str(port), str(rate)]
    striking = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True, cwd=REPOSITORY,
    )  # fmt: skip
    descriptors = growth = 0
    assert striking.stdout is not None
    striking.stdout.readline()
    until = time.monotonic() + seconds
    while time.monotonic() < until or not times:
        began = time.perf_counter()
        failed += not _is_served(service, port)
        times.append(time.perf_counter() - began)
        descriptors, growth = max(descriptors, child.info.num_fds()), max(growth, child.growth)
        time.sleep(_PAUSE_S)
    strikes, refused = (int(word) for word in striking.communicate()[0].split())
    p99_s = statistics.quantiles([*times, *times], n=100)[-1]
    return Measured(len(times), failed, p99_s, strikes, refused, growth, descriptors)


def _is_served(service: Service, port: int) -> bool:
    """Act as a good client that tries again; return whether it was served in the end."""
    until = time.monotonic() + _MOST_S
    while time.monotonic() < until:
        try:
            service.good(port)
        except Exception:  # noqa: BLE001  any way not to be served
            time.sleep(_PAUSE_S)
        else:
            return True
    return False


def row(name: str, load: str, found: Measured, ratio: float) -> str:
    """Return a line of the table."""
    cells = (
        name, load.replace("_", " "), f"{found.answered - found.failed}/{found.answered}",
        f"{found.refused}/{found.strikes}", f"{found.growth / MIB:.0f}", str(found.descriptors),
        f"{1000 * found.p99_s:.0f}", f"{ratio:.2f}",
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def main() -> int:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(prog="python -m tests.battery")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rate", type=float, default=50.0)
    parser.add_argument("--only", choices=[*SERVICES], action="append")
    flags = parser.parse_args()
    print("| service | load | answered | strikes refused | MiB | descriptors | p99 ms | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    held = True
    for name in flags.only or SERVICES:
        with running(SERVICES[name].child) as child:
            references = {}
            for load in (WELL_FORMED, LARGE):
                references[load] = measured(child, name, load, 2 * flags.seconds, flags.rate)
                print(row(name, load, references[load], 1.0), flush=True)
            for load, attack in ATTACKS.items():
                found = measured(child, name, load, flags.seconds, flags.rate)
                ratio = found.p99_s / references[LARGE if attack.is_large else WELL_FORMED].p99_s
                print(row(name, load, found, ratio), flush=True)
                held &= not found.failed and ratio <= MOST_RATIO
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
