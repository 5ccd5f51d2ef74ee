"""A niced process that strikes a service N times a second until standard input ends.

Prints a line after the first strike; at the end, the number of strikes and of refusals.
"""

from __future__ import annotations

import collections
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.battery.attacks import ATTACKS, Attack, closed
from tests.battery.services import MIB, SERVICES, Service

WELL_FORMED, LARGE = "well-formed", "whole 12 MiB messages"
"""Not attacks: the same load by good clients, and by clients that send whole messages."""


def attack_of(name: str) -> Attack:
    """Return an attack of the table, or the good clients."""
    if name in ATTACKS:
        return ATTACKS[name]

    def ask(service: Service, port: int, number: int) -> None:
        if name == LARGE:
            service.send(port, bytes(12 * MIB))
        else:
            service.good(port)

    return Attack(ask, 1)


def main(service: Service, attack: Attack, port: int, rate: float) -> None:
    """Strike, and hold the newest strikes."""
    ended = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    held: collections.deque[Any] = collections.deque()
    made, refused = 1, 0

    def strike(number: int) -> None:
        nonlocal refused
        try:
            held.append(attack.strike(service, port, number))
        except Exception:  # noqa: BLE001  any refusal counts
            refused += 1

    with ThreadPoolExecutor(attack.threads) as pool:
        waiting = collections.deque([pool.submit(strike, 0)])
        waiting[0].result()
        print("striking", flush=True)
        began, due = time.monotonic(), 0
        while not ended.wait(max(0.0, began + due / rate - time.monotonic())):
            due += 1
            while waiting and waiting[0].done():
                waiting.popleft()
            if len(waiting) < 4 * attack.threads:  # as many as the service lets us open
                waiting.append(pool.submit(strike, made))
                made += 1
            while len(held) > attack.strikes:
                pool.submit(closed, held.popleft())
        print(made, refused, flush=True)
        os._exit(0)  # calls that nobody answers would be waited for


if __name__ == "__main__":
    os.nice(10)
    main(SERVICES[sys.argv[1]], attack_of(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
