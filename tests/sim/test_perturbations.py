"""Perturbed scenes of MuJoCo: what is rendered changes, and what happens does not."""

from __future__ import annotations

import numpy as np
import pytest

from proctor.benchmarks.metaworld.benchmark import Metaworld, MetaworldConfig
from proctor.benchmarks.perturbations import LEVELS
from proctor.benchmarks.perturbations.benchmark import PerturbedBenchmark
from proctor.benchmarks.perturbations.dimensions import dimensions_of
from proctor.features import IMAGE
from proctor.types import Task

pytestmark = pytest.mark.sim

SCENE = ["camera", "light", "texture"]


def test_a_clean_episode_after_perturbed_ones_has_the_same_image_and_physics() -> None:
    config = MetaworldConfig(task="push-v3", observation_height=64, observation_width=64)
    clean_benchmark = Metaworld(config)
    clean_benchmark.preflight([IMAGE])
    names = [*SCENE, "robot_pose"]
    benchmark = PerturbedBenchmark(clean_benchmark, dimensions_of(names, clean_benchmark), LEVELS)
    clean, *variants = benchmark.tasks()
    sim = benchmark.make_sim(clean)
    actions = np.random.default_rng(0).uniform(-1, 1, (5, 4)).astype(np.float32)

    def played(task: Task) -> tuple[np.ndarray, np.ndarray]:
        sim.reset(benchmark.spec(task, 0, 1000))
        for action in actions:
            sim.step(action)
        return sim.observe([IMAGE])[IMAGE], sim.physics()

    try:
        image, physics = played(clean)
        for task in variants:
            seen, happened = played(task)
            assert task.perturbation is not None
            assert (seen != image).mean() > 0.02
            assert (happened == physics).all() == (task.perturbation.dimension in SCENE)
        again, repeated = played(clean)
    finally:
        sim.close()
    np.testing.assert_array_equal(again, image)
    np.testing.assert_array_equal(repeated, physics)
