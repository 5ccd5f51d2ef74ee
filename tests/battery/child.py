"""One service in a process of its own, with few descriptors; prints the port of each endpoint."""

from __future__ import annotations

import contextlib
import resource
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from proctor.system.limits import ServerLimits

MOST_DESCRIPTORS = 300
LIMITS = ServerLimits(max_clients=24, open_s=1.0, message_s=8.0, memory_bytes=96 * 2**20)


@contextlib.contextmanager
def serve() -> Iterator[dict[str, int]]:
    """A policy server with all protocols."""
    from proctor.commands.serve import opened
    from proctor.config.builder import build
    from proctor.config.serving import ServeConfig
    from proctor.serving.server import serving

    names = ["openpi", "vla-eval", "groot", "lerobot"]
    flags = {"policy.type": "random", "env.type": "fake", "protocol": names, "port": [0] * 4}
    config = build(ServeConfig, {**flags, "policy.inputs": ["observation.state"]})
    with opened(config) as service, serving(config.endpoints, service, LIMITS) as addresses:
        ports = [int(address.rpartition(":")[2]) for address in addresses]
        yield dict(zip(names, ports, strict=True))


@contextlib.contextmanager
def learner() -> Iterator[dict[str, int]]:
    """A learner that stores transitions in a journal."""
    import threading

    from proctor.rl.learner_service import LearnerService, ServiceLimits
    from proctor.rl.links import LearnerEndpoint
    from proctor.rl.payloads import TransitionSpec
    from proctor.rl.replay.journal import Journal

    endpoint = LearnerEndpoint()
    spec = TransitionSpec({"observation.state": (3,)}, 2)
    limits = ServiceLimits(max_receiving_bytes=LIMITS.memory_bytes)
    service = LearnerService(endpoint, spec, LIMITS, 0, limits)
    stopping = threading.Event()

    def store(journal: Journal) -> None:
        while not stopping.is_set():
            received = endpoint.take(None, 0.1)
            for one in received:
                if one.transition.is_learnable:
                    journal.append(one)
            journal.sync()
            endpoint.acknowledge(received)

    with tempfile.TemporaryDirectory() as folder:
        thread = threading.Thread(target=store, args=(Journal(Path(folder), segment_bytes=10_000),))
        thread.start()
        yield {"learner": service.port}
        stopping.set()
        thread.join()
    endpoint.close()
    service.close()


@contextlib.contextmanager
def view() -> Iterator[dict[str, int]]:
    """The pages of a folder without runs."""
    import threading

    from proctor.report.serve import RunServer

    with tempfile.TemporaryDirectory() as folder:
        server = RunServer(Path(folder), "127.0.0.1", 0)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield {"view": server.server_address[1]}
        server.shutdown()
        server.server_close()


CHILDREN: dict[str, Callable[[], contextlib.AbstractContextManager[dict[str, int]]]] = {
    "serve": serve,
    "learner": learner,
    "view": view,
}
"""The processes, each with one or more services of ``services.SERVICES``."""


def main(name: str) -> None:
    """Serve until standard input ends."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (MOST_DESCRIPTORS, MOST_DESCRIPTORS))
    with CHILDREN[name]() as ports:
        print(*(f"{service}={port}" for service, port in ports.items()), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1])
