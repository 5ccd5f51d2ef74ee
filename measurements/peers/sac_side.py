"""LeRobot's side of the measurement of online learning: updates per second of its SAC.

    python sac_side.py '{"device": "cpu", "batch": 8, ...}'

Runs in LeRobot's own environment, so it imports nothing of Proctor. The case is JSON, see
`measurements.online_speed.Case`. Prints the seconds of every timed block of updates as JSON.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from typing import Any

import torch
from lerobot.configs.types import FeatureType, PolicyFeature
from lerobot.policies.gaussian_actor.configuration_gaussian_actor import GaussianActorConfig
from lerobot.policies.gaussian_actor.modeling_gaussian_actor import GaussianActorPolicy
from lerobot.rl.algorithms.sac import SACAlgorithm, SACAlgorithmConfig


def make_learner(case: dict[str, Any]) -> Any:
    """Return LeRobot's SAC with its default sizes."""
    inputs = {"observation.state": PolicyFeature(FeatureType.STATE, (case["state"],))}
    for camera in range(case["cameras"]):
        shape = (3, case["image"], case["image"])
        inputs[f"observation.images.{camera}"] = PolicyFeature(FeatureType.VISUAL, shape)
    outputs = {"action": PolicyFeature(FeatureType.ACTION, (case["actions"],))}
    config = GaussianActorConfig(
        input_features=inputs,
        output_features=outputs,
        device=case["device"],
        num_discrete_actions=case["grippers"],
    )
    policy = GaussianActorPolicy(config=config).to(case["device"])
    settings = SACAlgorithmConfig(policy_config=config, utd_ratio=case["utd"])
    learner = SACAlgorithm(policy=policy, config=settings)
    learner.make_optimizers_and_scheduler()
    policy.train()
    return learner


def make_batch(case: dict[str, Any]) -> dict[str, Any]:
    """Return a random batch on the device."""

    def observation() -> dict[str, torch.Tensor]:
        found = {"observation.state": torch.randn(case["batch"], case["state"])}
        for camera in range(case["cameras"]):
            shape = case["batch"], 3, case["image"], case["image"]
            found[f"observation.images.{camera}"] = torch.randn(shape)
        return {name: value.to(case["device"]) for name, value in found.items()}

    action = torch.rand(case["batch"], case["actions"]) * 2 - 1
    if case["grippers"]:
        action = torch.cat([action, torch.randint(0, case["grippers"], (case["batch"], 1))], 1)
    return {
        "state": observation(),
        "action": action.to(case["device"]),
        "reward": torch.rand(case["batch"], device=case["device"]),
        "next_state": observation(),
        "done": torch.zeros(case["batch"], device=case["device"]),
        "complementary_info": {
            "discrete_penalty": torch.zeros(case["batch"], device=case["device"])
        },
    }


def main() -> None:
    """Time blocks of updates."""
    case = json.loads(sys.argv[1])
    torch.manual_seed(0)
    torch.set_num_threads(1)
    learner, batches = make_learner(case), itertools.cycle([make_batch(case) for _ in range(2)])
    is_cuda = case["device"].startswith("cuda")
    clock = time.perf_counter if is_cuda else time.process_time
    for _ in range(case["warm_up"]):
        learner.update(batches)
    blocks = []
    for _ in range(case["blocks"]):
        start = clock()
        for _ in range(case["updates"]):
            learner.update(batches)
        if is_cuda:
            torch.cuda.synchronize()
        blocks.append(clock() - start)
    print(json.dumps(blocks))


if __name__ == "__main__":
    main()
