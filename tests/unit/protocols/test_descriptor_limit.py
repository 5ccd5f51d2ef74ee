"""A server with few file descriptors serves clients while strangers hold connections."""

from __future__ import annotations

import re
import resource
import socket
import subprocess
import sys
import threading
from urllib.request import urlopen

LIMIT = 64
COMMAND = (sys.executable, "-m", "proctor.cli", "serve", "--policy.type=random", "--env.type=fake",
           "--policy.inputs=observation.state", "--protocol=openpi", "--port=0")  # fmt: skip


def allow_few_descriptors() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, LIMIT))


def test_strangers_who_hold_connections_do_not_take_all_descriptors() -> None:
    with subprocess.Popen(
        COMMAND, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=allow_few_descriptors,
    ) as server:  # fmt: skip
        assert server.stdout is not None
        assert server.stderr is not None
        said: list[str] = []
        reader = threading.Thread(target=said.extend, args=(server.stderr,))
        reader.start()
        found = None
        while found is None:
            line = server.stdout.readline()
            assert line, said  # the server ended
            found = re.search(r"ws://127\.0\.0\.1:(\d+)", line)
        port = int(found[1])
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(2 * LIMIT)]
        with urlopen(f"http://127.0.0.1:{port}/healthz", timeout=60) as answer:
            assert answer.read() == b"OK\n"
        for connection in silent:
            connection.close()
        server.terminate()
        server.wait(timeout=60)
        reader.join(60)
    assert not any("Traceback" in line for line in said), "".join(said)
