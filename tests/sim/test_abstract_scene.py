"""MuJoCo's abstract scene as arrays, without GL and without the drawing process."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

mujoco = pytest.importorskip("mujoco")
from proctor.benchmarks.mujoco.abstract_scene import (  # noqa: E402
    AbstractScene,
    assets_key,
    model_assets,
)
from proctor.errors import PluginError  # noqa: E402
from proctor_worker.drawing import scene as columns  # noqa: E402
from proctor_worker.drawing.scene import Quality, SceneLayout  # noqa: E402

pytestmark = pytest.mark.sim
DIFFUSE = slice(9, 12)
"""Columns of a light, after position, direction and ambient colour."""
WORLD = """
<mujoco>
  <asset>
    <texture name="t" type="2d" builtin="checker" width="8" height="8"/>
    <material name="m" texture="t" shininess="0.25"/>
    {assets}
  </asset>
  <worldbody>
    <light pos="0 0 2" dir="0 0 -1" castshadow="true"/>
    <camera name="c" pos="0 -1 1" xyaxes="1 0 0 0 1 1" fovy="50"/>
    <geom type="plane" size="1 1 0.1" material="m"/>
    <site name="goal" type="sphere" size="0.02" pos="0.1 0.2 0.3" rgba="0 1 0 1"/>
    <body name="moved" pos="0 0 0.5"><geom type="capsule" size="0.05 0.2"/></body>
    <geom group="1" type="box" size="0.1 0.2 0.3" pos="0 0 1"/>
    {geoms}
  </worldbody>
</mujoco>
"""


def model_of(assets: str = "", geoms: str = "") -> Any:
    return mujoco.MjModel.from_xml_string(WORLD.format(assets=assets, geoms=geoms))


class SceneRequest(NamedTuple):
    """A request's layout, and its numbers by what they belong to."""

    layout: SceneLayout
    camera: Any
    lights: Any
    geoms: Any

    @property
    def kinds(self) -> list[int]:
        return list(self.layout.geoms[:, columns.TYPE])


def read(model: Any, edit: Any = None, hidden: tuple[int, ...] = ()) -> SceneRequest:
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    request = AbstractScene(model, hidden, "key", Quality(8, 8, 1, True)).read(data, "c", edit)
    numbers = np.frombuffer(request.numbers, np.float32)
    assert len(numbers) == request.layout.n_numbers
    first = columns.CAMERA_FLOATS
    last = first + len(request.layout.lights) * columns.LIGHT_FLOATS
    lights = numbers[first:last].reshape(-1, columns.LIGHT_FLOATS)
    geoms = numbers[last:].reshape(-1, columns.GEOM_FLOATS)
    return SceneRequest(request.layout, numbers[:first], lights, geoms)


def test_visible_sites_and_moved_bodies_are_geoms_of_the_scene() -> None:
    model = model_of()
    model.body("moved").pos[:] = (0.5, 0, 0.5)
    seen = read(model)
    kinds = seen.kinds
    assert sorted(kinds) == [columns.PLANE, columns.SPHERE, columns.CAPSULE, columns.BOX]
    site, capsule = kinds.index(columns.SPHERE), kinds.index(columns.CAPSULE)
    assert seen.geoms[site, columns.POS] == pytest.approx((0.1, 0.2, 0.3))
    assert seen.geoms[site, columns.RGBA] == pytest.approx((0, 1, 0, 1))
    assert seen.geoms[capsule, columns.POS] == pytest.approx((0.5, 0, 0.5))
    plane = kinds.index(columns.PLANE)
    assert seen.geoms[plane, columns.SHININESS] == 0.25
    assert seen.layout.geoms[plane, columns.MATID] == 0


def test_a_site_that_is_hidden_by_a_negative_alpha_stays_hidden() -> None:
    model = model_of()
    model.site("goal").rgba[3] = -0.5
    seen = read(model)
    assert seen.geoms[seen.kinds.index(columns.SPHERE), columns.RGBA][3] == 0


def test_the_camera_is_the_models() -> None:
    seen = read(model_of())
    assert seen.camera[columns.CAMERA_POS] == pytest.approx((0, -1, 1), abs=1e-6)
    assert seen.layout.fovy == 50
    turn = seen.camera[columns.CAMERA_MAT].reshape(3, 3)
    assert turn @ turn.T == pytest.approx(np.eye(3), abs=1e-5)
    assert turn[:, 0] == pytest.approx((1, 0, 0), abs=1e-6)


def test_hidden_groups_are_left_out() -> None:
    assert columns.BOX not in read(model_of(), hidden=(1,)).kinds


def test_a_scene_edit_changes_the_request_and_not_the_model() -> None:
    def edit(scene: Any, model: Any, camera: str) -> None:
        scene.camera[0].pos[:] += 0.5
        scene.camera[1].pos[:] += 0.5
        scene.lights[scene.nlight - 1].diffuse[:] = 0.125
        scene.geoms[0].rgba[:3] = 0.75

    model = model_of()
    plain, edited = read(model), read(model, edit)
    assert edited.camera[:3] - plain.camera[:3] == pytest.approx(0.5)
    assert (edited.lights[-1, DIFFUSE] == 0.125).all()
    assert (edited.geoms[0, columns.RGBA][:3] == 0.75).all()
    assert read(model).geoms.tobytes() == plain.geoms.tobytes()


def test_the_key_is_that_of_the_assets_alone() -> None:
    same, posed, other = model_of(), model_of(), model_of()
    posed.body("moved").pos[:] = 1
    other.tex_data[0] += 1
    keys = [assets_key(model_assets(model)) for model in (same, posed, other)]
    assert keys[0] == keys[1] != keys[2]


def test_a_height_field_is_refused() -> None:
    field = '<hfield name="h" nrow="4" ncol="4" size="1 1 1 0.1"/>'
    with pytest.raises(PluginError) as refused:
        read(model_of(field, '<geom type="hfield" hfield="h"/>'))
    assert refused.value.code == "render.unsupported"
