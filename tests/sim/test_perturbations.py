"""Perturbed scenes of MuJoCo: what is rendered changes, and what happens does not."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from proctor.benchmarks.metaworld.benchmark import Metaworld, MetaworldConfig
from proctor.benchmarks.perturbations import LEVELS
from proctor.benchmarks.perturbations.base import PerturbedEpisode
from proctor.benchmarks.perturbations.benchmark import PerturbedBenchmark
from proctor.benchmarks.perturbations.dimensions import dimensions_of
from proctor.benchmarks.perturbations.scene import Texture
from proctor.features import IMAGE, ActionSpec
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


MODEL = """
<mujoco><worldbody>
  <geom name="floor" type="plane" size="1 1 1"/>
  <body name="table"><geom name="table" size="1"/></body>
  <body name="base"><geom name="base" size="1"/>
    <body name="arm"><joint type="hinge"/><geom name="arm" size="1"/></body></body>
  <body name="goal" mocap="true"><geom name="goal" size="1"/></body>
</worldbody></mujoco>
"""


def test_another_texture_leaves_robots_with_their_bases_and_goals_alone() -> None:
    import mujoco

    model = mujoco.MjModel.from_xml_string(MODEL)
    geoms = [
        SimpleNamespace(objtype=mujoco.mjtObj.mjOBJ_GEOM, objid=number, matid=-1, rgba=np.ones(4))
        for number in range(model.ngeom)
    ]
    episode = PerturbedEpisode(
        dimension="texture", level=3, seed=0, fps=80, action=ActionSpec(4), control=None,
        features={}, hold=None,
    )  # fmt: skip
    edit = Texture().begin(episode).scene_edit()
    assert edit is not None
    edit(SimpleNamespace(ngeom=len(geoms), geoms=geoms), model, "corner")
    recoloured = {model.geom(one.objid).name for one in geoms if (one.rgba != 1).any()}
    assert recoloured == {"floor", "table"}
