"""A server without free file descriptors prints one line and continues."""

from __future__ import annotations

import re
import resource
import socket
import subprocess
import sys
import threading
import time
from urllib.request import urlopen

LIMIT = 64
COMMAND = (sys.executable, "-m", "proctor.cli", "serve", "--policy.type=random", "--env.type=fake",
           "--policy.inputs=observation.state", "--protocol=openpi", "--port=0")  # fmt: skip


def allow_few_descriptors() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, LIMIT))


def test_the_descriptor_limit_is_one_line_and_the_server_goes_on() -> None:
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
        deadline = time.monotonic() + 60
        while not any("descriptors" in line for line in said):
            assert time.monotonic() < deadline, said
            time.sleep(0.05)
        time.sleep(1.5)  # the server tries again every second
        for connection in silent:
            connection.close()
        with urlopen(f"http://127.0.0.1:{port}/healthz", timeout=60) as answer:
            assert answer.read() == b"OK\n"
        server.terminate()
        server.wait(timeout=60)
        reader.join(60)
    told = [line for line in said if "descriptors" in line]
    assert len(told) == 1, said
    assert not any("Traceback" in line for line in said), "".join(said)
