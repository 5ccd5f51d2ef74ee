"""Run by LeRobot's Python: its LeKiwi client reads a host and moves it (see test_lekiwi_host)."""

from __future__ import annotations

import json
import sys
import time

from lerobot.robots.lekiwi.config_lekiwi import LeKiwiClientConfig
from lerobot.robots.lekiwi.lekiwi_client import LeKiwiClient


def main(command_port: str, observation_port: str, action: str) -> None:
    """Read an observation, send ``action`` (JSON) for half a second, print what was read."""
    client = LeKiwiClient(
        LeKiwiClientConfig(
            remote_ip="127.0.0.1",
            port_zmq_cmd=int(command_port),
            port_zmq_observations=int(observation_port),
            cameras={},
        )
    )
    client.connect()
    seen = client.get_observation()
    for _ in range(10):
        client.send_action(json.loads(action))
        time.sleep(0.05)
    client.disconnect()
    print(json.dumps({name: float(seen[name]) for name in json.loads(action)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
