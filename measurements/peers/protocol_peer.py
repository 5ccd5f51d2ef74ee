"""A peer's own client or server, run by the peer's Python.

    python protocol_peer.py openpi-client ws://127.0.0.1:8000
    python protocol_peer.py vla-client ws://127.0.0.1:8001 | vla-server PORT
    python protocol_peer.py lerobot-client 127.0.0.1:8080 CHECKPOINT | lerobot-server PORT

Clients send a few synthetic observations and print the returned actions as JSON.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

MOMENTS = 6
SIZE = 16
PROMPT = "reach the goal"


def image(moment: int) -> Any:
    return np.full((SIZE, SIZE, 3), 20 * moment, np.uint8)


def state(moment: int) -> Any:
    return np.asarray([0.1 * moment, -0.2 * moment], np.float32)


def tell(actions: list[Any]) -> None:
    print(json.dumps([np.asarray(chunk, np.float64).tolist() for chunk in actions]), flush=True)


def openpi_client(url: str) -> None:
    from openpi_client.websocket_client_policy import WebsocketClientPolicy

    policy = WebsocketClientPolicy(url)
    assert policy.get_server_metadata()["policy"]
    found = []
    for moment in range(MOMENTS):
        seen = {"observation/image": image(moment), "observation/state": state(moment)}
        found.append(policy.infer({**seen, "prompt": PROMPT})["actions"])
    tell(found)


def vla_client(url: str) -> None:
    import anyio
    from vla_eval.connection import Connection

    async def ask() -> None:
        async with Connection(url) as connection:
            await connection.start_episode({"task": {"name": PROMPT, "suite": "made up"}})
            found = []
            for moment in range(MOMENTS):
                images = {"agentview": image(moment)}
                seen = {"images": images, "states": state(moment), "task_description": PROMPT}
                found.append((await connection.act(seen))["actions"])
            await connection.end_episode({"success": False})
            tell(found)

    anyio.run(ask)


def vla_server(port: str) -> None:
    from vla_eval.model_servers.predict import PredictModelServer
    from vla_eval.model_servers.serve import serve

    class Home(PredictModelServer):  # type: ignore[misc]  # not installed in our venv
        """Moves towards the middle, four steps at a time."""

        def predict(self, obs: Any, ctx: Any) -> dict[str, Any]:
            walked = np.clip(-np.asarray(obs["states"], np.float32), -1, 1)
            assert obs["images"]["agentview"].dtype == np.uint8
            return {"actions": np.repeat(walked[None], 4, axis=0)}

    serve(Home(chunk_size=4), host="127.0.0.1", port=int(port))


def lerobot_client(address: str, checkpoint: str) -> None:
    from lerobot.async_inference import robot_client
    from lerobot.async_inference.configs import RobotClientConfig
    from lerobot.robots.so_follower import SO101FollowerConfig

    class Still:
        """A robot that does not move."""

        def __init__(self) -> None:
            self.observation_features = {"x": float, "y": float, "cam": (SIZE, SIZE, 3)}
            self.action_features = {"x": float, "y": float}
            self.moment = 0
            self.done: list[list[float]] = []

        def connect(self) -> None:
            pass

        def disconnect(self) -> None:
            pass

        def get_observation(self) -> dict[str, Any]:
            x, y = state(self.moment)
            return {"x": float(x), "y": float(y), "cam": image(self.moment)}

        def send_action(self, action: dict[str, float]) -> dict[str, float]:
            self.done.append([action["x"], action["y"]])
            return action

    robot = Still()
    robot_client.make_robot_from_config = lambda config: robot
    config = RobotClientConfig(
        policy_type="act",
        pretrained_name_or_path=checkpoint,
        robot=SO101FollowerConfig(port="none"),
        actions_per_chunk=4,
        server_address=address,
    )
    client = robot_client.RobotClient(config)
    assert client.start()
    threading.Thread(target=client.receive_actions, daemon=True).start()
    client.start_barrier.wait()
    found = []
    for moment in range(MOMENTS):
        robot.moment, robot.done = moment, []
        client.latest_action = 100 * moment
        client.control_loop_observation(PROMPT)
        until = time.monotonic() + 30
        while not client.actions_available() and time.monotonic() < until:
            time.sleep(0.005)
        while client.actions_available():
            client.control_loop_action()
        found.append(robot.done)
    tell(found)
    client.stop()


def lerobot_server(port: str) -> None:
    from lerobot.async_inference import policy_server

    sys.argv = ["policy_server", "--host=127.0.0.1", f"--port={port}", "--inference_latency=0.0"]
    policy_server.serve()


SIDES: dict[str, Callable[..., None]] = {
    "openpi-client": openpi_client,
    "vla-client": vla_client,
    "vla-server": vla_server,
    "lerobot-client": lerobot_client,
    "lerobot-server": lerobot_server,
}

if __name__ == "__main__":
    SIDES[sys.argv[1]](*sys.argv[2:])
