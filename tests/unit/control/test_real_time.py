"""Inference while the robot moves: the schedule is that of --eval.latency_steps."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from proctor.control.policy.driver import PolicyDriver, RobotPolicy
from proctor.control.policy.real_time import RealTimeDriver, latency_steps
from proctor.control.robot_features import ChannelMapping, robot_interface
from proctor.engine.action_queue import ActionQueue
from proctor.errors import PolicyError
from proctor.features import STATE, Array
from proctor.policies.base import Batch, Policy, PolicySpec
from proctor.types import EpisodeSpec, Task
from tests.unit.control.trial_robots import ReachRobot

CHUNK = 6
TASK = Task("reach_follower", 0, "reach", "reach the target", max_steps=50, fps=30)
SPEC = EpisodeSpec(TASK, 0, 7)


class Counting(Policy):
    """Action n of the chunk asked at step s is (s, n); replies wait for ``gate``."""

    def __init__(self) -> None:
        self.spec = PolicySpec("counting", (STATE,), n_action_steps=CHUNK)
        self.asked: list[int] = []
        self.gate = threading.Event()
        self.gate.set()
        self.error: Exception | None = None

    def act(self, batch: Batch) -> Array:
        step = batch.queries[0].step
        self.asked.append(step)
        self.gate.wait(60)
        if self.error is not None:
            raise self.error
        return np.array([[[step, n] for n in range(CHUNK)]], np.float32)


def driver_of(policy: Policy, latency: int) -> tuple[RealTimeDriver, ReachRobot]:
    robot = ReachRobot(camera=False)
    made = RobotPolicy(policy, robot_interface(robot, 30), ChannelMapping(robot))
    driver = RealTimeDriver(PolicyDriver(made), latency)
    driver.start_episode(SPEC)
    return driver, robot


def step(driver: RealTimeDriver, robot: ReachRobot) -> tuple[int, int]:
    action = driver.act(robot.get_observation())
    return int(action["arm.pos"]), int(action["gripper.pos"])


@pytest.mark.parametrize("latency", [1, 2, 3])
def test_the_actions_are_those_of_a_simulated_latency(latency: int) -> None:
    policy = Counting()
    driver, robot = driver_of(policy, latency)
    sent = []
    for _ in range(20):
        sent.append(step(driver, robot))
        driver.wait_for_reply()
    queue, expected, asked = ActionQueue(SPEC, latency), [], 0
    while len(expected) < 20:
        chunk = np.array([[asked, n] for n in range(CHUNK)], np.float32)
        expected += [(int(a), int(b)) for a, b in queue.next_actions(chunk)]
        asked = len(expected)
    assert sent == expected[:20]
    assert driver.held == 0
    driver.close()


def test_a_late_reply_holds_the_last_target_and_skips_as_many_actions() -> None:
    policy = Counting()
    driver, robot = driver_of(policy, 2)
    first = [step(driver, robot) for _ in range(4)]
    policy.gate.clear()
    late = [step(driver, robot) for _ in range(4)]
    policy.gate.set()
    driver.wait_for_reply()
    assert first == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert late == [(0, 4), (0, 5), (0, 5), (0, 5)]
    assert driver.held == 2
    assert step(driver, robot) == (4, 4)
    driver.close()


def test_a_failing_policy_is_told_in_the_loop() -> None:
    policy = Counting()
    driver, robot = driver_of(policy, 2)
    for _ in range(4):
        step(driver, robot)
    policy.error = ValueError("broken weights")
    step(driver, robot)
    step(driver, robot)
    driver.wait_for_reply()
    with pytest.raises(PolicyError):
        step(driver, robot)
    driver.close()


def test_a_new_episode_forgets_the_request_of_the_last_one() -> None:
    policy = Counting()
    driver, robot = driver_of(policy, 2)
    for _ in range(5):
        step(driver, robot)
    driver.start_episode(SPEC)
    assert step(driver, robot) == (0, 0)
    driver.close()


def test_chunks_must_be_longer_than_the_latency() -> None:
    driver, robot = driver_of(Counting(), CHUNK)
    with pytest.raises(PolicyError) as refused:
        step(driver, robot)
    assert refused.value.code == "policy.chunk-too-short"
    driver.close()


@pytest.mark.parametrize(("seconds", "steps"), [(0.0, 1), (0.01, 1), (0.1, 4), (0.5, 18)])
def test_the_latency_in_steps_has_a_margin(seconds: float, steps: int) -> None:
    assert latency_steps(seconds, 30) == steps
