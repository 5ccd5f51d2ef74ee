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
HOST_KEY = bytes(range(32))
LIMITS = ServerLimits(max_clients=24, open_s=1.0, message_s=8.0, memory_bytes=96 * 2**20)


@contextlib.contextmanager
def serve() -> Iterator[dict[str, int]]:
    """A policy server with all protocols."""
    from proctor.commands.evaluation.serve import opened
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

    from proctor.rl.learner.service import LearnerService, ServiceLimits
    from proctor.rl.link.links import LearnerEndpoint
    from proctor.rl.link.payloads import TransitionSpec
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

    from proctor.report.server.serve import RunServer

    with tempfile.TemporaryDirectory() as folder:
        server = RunServer(Path(folder), "127.0.0.1", 0)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield {"view": server.server_address[1]}
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def robot_host() -> Iterator[dict[str, int]]:
    """A simulated LeKiwi behind a host with a key."""
    import threading

    from proctor.config.robot_host import HostSettings
    from proctor.control.host_ports import HostPorts
    from proctor.control.loop.session import ControlSession
    from proctor.control.robot_host import serve_robot
    from proctor.robots.arms.lekiwi import Lekiwi, LekiwiConfig

    robot = Lekiwi(LekiwiConfig(port="sim", cameras={}))
    session = ControlSession(robot)
    with tempfile.TemporaryDirectory() as folder:
        key = Path(folder, "key")
        key.write_text(HOST_KEY.hex())
        settings = HostSettings(port_zmq_cmd=0, port_zmq_observations=0, key_file=key)
        with HostPorts(settings, print_error) as ports:
            robot.connect()
            served = (session, ports, settings, print_error)
            thread = threading.Thread(target=serve_robot, args=served)
            thread.start()
            names = ("robot-host-actions", "robot-host-observations")
            yield dict(zip(names, (ports.command_port, ports.observation_port), strict=True))
            session.keys.press("q")
            thread.join()
            robot.disconnect()


def print_error(line: str) -> None:
    print(line, file=sys.stderr)


CHILDREN: dict[str, Callable[[], contextlib.AbstractContextManager[dict[str, int]]]] = {
    "serve": serve,
    "learner": learner,
    "view": view,
    "robot-host": robot_host,
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
