"""LeRobot's unmodified LeKiwi client drives a robot behind ``proctor robot-host``.

Needs LeRobot in a venv of its own: set PROCTOR_LEROBOT_PYTHON to that venv's python.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest
from tests.unit.control.test_robot_host import Served
from tests.unit.robots.test_lekiwi import goal_speeds

from proctor.control.host_ports import HostPorts

HERE = Path(__file__).parent
PYTHON = os.environ.get("PROCTOR_LEROBOT_PYTHON", "")
pytestmark = pytest.mark.skipif(
    not Path(PYTHON).is_file(), reason="LeRobot not installed (set PROCTOR_LEROBOT_PYTHON)"
)
JOINTS = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll")
ACTION = {f"arm_{name}.pos": 0.0 for name in JOINTS}
ACTION |= {"arm_gripper.pos": 10.0, "x.vel": 0.0, "y.vel": 0.0, "theta.vel": 30.0}


def test_lerobots_client_reads_the_state_and_moves_arm_and_base(tmp_path: Path) -> None:
    seen: list[list[int]] = []

    def drive(served: Served, sockets: HostPorts) -> None:
        words = [str(sockets.command_port), str(sockets.observation_port), json.dumps(ACTION)]
        process = subprocess.Popen(
            [PYTHON, str(HERE / "lekiwi_client_side.py"), *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        deadline = time.monotonic() + 120
        while process.poll() is None or (any(seen[-1]) and time.monotonic() < deadline):
            if goal_speeds(served.bus) not in seen[-1:]:
                seen.append(goal_speeds(served.bus))
            time.sleep(0.005)
        out, err = process.communicate()
        assert process.returncode == 0, err[-3000:]
        state = json.loads(out)
        assert state["arm_gripper.pos"] == pytest.approx(50, abs=0.1)
        assert state["theta.vel"] == 0
        gripper = served.bus.servos[5]
        assert gripper.get(gripper.goal_position) == pytest.approx(409, abs=2)

    result = Served(tmp_path, max_loop_freq_hz=30).run(drive)
    assert seen == [[0, 0, 0], [853, 853, 853], [0, 0, 0]]
    assert result.actions > 0
    assert result.invalid == 0
