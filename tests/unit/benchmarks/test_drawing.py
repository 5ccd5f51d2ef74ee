"""The drawing process's messages, with a drawer that needs no GPU and no MuJoCo."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proctor.benchmarks.metaworld.benchmark import MetaworldConfig
from proctor.benchmarks.mujoco.drawing_client import PLACES, DrawingClient
from proctor.benchmarks.mujoco.drawing_process import render_variables
from proctor.benchmarks.mujoco.render_config import (
    Renderer,
    RendererDevice,
    RenderSettings,
)
from proctor.errors import PluginError, UsageError
from proctor.fingerprint import defining_fields
from proctor.system.platform.environment import (
    DRAWER_VARIABLE,
    RENDERER_VARIABLE,
    lasting_variables,
)
from proctor_worker.drawing.scene import (
    BOX,
    MESH,
    SPHERE,
    Quality,
    SceneLayout,
    layout_frame,
    layout_of_frame,
)
from proctor_worker.drawing.server import DrawingServer
from proctor_worker.drawing.slots import slot_counts, slot_kinds, slots_of_geoms

SIZE = Quality(height=96, width=64, samples=1, shadows=True)
IMPOSSIBLE, FAILS_LATER = -1.0, -2.0
"""Colours that cannot be drawn: it fails at once, or while it is drawn."""


class FakeDrawer:
    """Paints each picture in the colour that is the only number of its request."""

    def __init__(self) -> None:
        self.assets: dict[str, dict[str, Any]] = {}
        self.layouts: set[int] = set()
        self.added = 0

    def add_assets(self, key: str, assets: dict[str, Any]) -> None:
        self.assets[key] = assets

    def has_assets(self, key: str) -> bool:
        return key in self.assets

    def add_layout(self, layout: SceneLayout) -> int:
        self.added += 1
        self.layouts.add(self.added)
        return self.added

    def has_layout(self, number: int) -> bool:
        return number in self.layouts

    def statistics(self) -> dict[str, Any]:
        return {"layouts": self.added}

    def begin(self, worlds: list[tuple[int, bytes]]) -> FakeDrawing:
        colours = [float(np.frombuffer(numbers, np.float32)[0]) for _, numbers in worlds]
        if IMPOSSIBLE in colours:
            raise ValueError("no such colour")
        return FakeDrawing(colours)


class FakeDrawing:
    def __init__(self, colours: list[float]) -> None:
        self.colours, self.asked = colours, 0

    def is_done(self) -> bool:
        self.asked += 1
        return self.asked > 2

    def images(self) -> list[np.ndarray]:
        if FAILS_LATER in self.colours:
            raise ValueError("the device is gone")
        shape = (SIZE.height, SIZE.width, 3)
        return [np.full(shape, colour, np.uint8) for colour in self.colours]


LAYOUT = SceneLayout("a", SIZE, np.zeros((1, 3), np.int32).tobytes(), bytes(28), 45.0)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, DrawingServer, FakeDrawer]]:
    address, drawer = str(tmp_path / "s"), FakeDrawer()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        serving = DrawingServer(listener, drawer, {"op": "ready"})
        threading.Thread(target=serving.serve, daemon=True).start()
        yield address, serving, drawer


def connect(address: str) -> DrawingClient:
    return DrawingClient(address, SIZE.height * SIZE.width * 3)


def image(client: DrawingClient, colour: float, layout: int = 1) -> np.ndarray:
    pending = client.draw(layout, np.float32(colour).tobytes())
    client.wait(pending)
    assert pending.pixels is not None
    return pending.pixels


def test_a_layout_survives_its_frame() -> None:
    got = layout_of_frame(*layout_frame(LAYOUT))
    assert got == LAYOUT
    assert got.view == LAYOUT.view


def test_the_geoms_of_a_scene_take_the_first_slots_of_their_types() -> None:
    kinds = np.array([BOX, SPHERE, BOX, MESH])
    slots = slot_counts(kinds)
    assert [slot_kinds(slots)[slot] for slot in slots_of_geoms(kinds, slots)] == list(kinds)
    assert slots_of_geoms(kinds, slots)[2] == slots_of_geoms(kinds, slots)[0] + 1


def test_scenes_share_slots_until_one_has_more_geoms_of_a_type() -> None:
    few, many = np.array([BOX, MESH]), np.array([SPHERE] * 10 + [MESH] * 20)
    assert slot_counts(few) == slot_counts(many)
    assert slot_counts(np.full(33, MESH))[MESH] == 64


def test_a_scene_needs_its_assets_and_pictures_come_through_shared_memory(server: Any) -> None:
    address, _, drawer = server
    client = connect(address)
    assert client.request(*layout_frame(LAYOUT))["op"] == "without-assets"
    large = {"mesh_vert": np.arange(300_000, dtype=np.float32)}
    assert client.request({"op": "assets", "assets": "a"}, large)["op"] == "kept"
    assert np.array_equal(drawer.assets["a"]["mesh_vert"], large["mesh_vert"])
    number = client.request(*layout_frame(LAYOUT))["number"]
    for colour in range(20):  # more pictures than the shared memory holds
        assert (image(client, colour, number) == colour).all()
    client.close()


def test_pictures_may_be_asked_for_ahead(server: Any) -> None:
    address, _, drawer = server
    drawer.layouts.add(1)
    client = connect(address)
    ahead = [client.draw(1, np.float32(colour).tobytes()) for colour in range(3 * PLACES)]
    assert client.request({"op": "statistics"})["drawer"] == {"layouts": 0}
    for colour, pending in reversed(list(enumerate(ahead))):
        client.wait(pending)
        assert pending.pixels is not None
        assert (pending.pixels == colour).all()
    client.close()


def test_a_layout_that_is_forgotten_is_unknown(server: Any) -> None:
    address, _, drawer = server
    drawer.layouts.add(1)
    client = connect(address)
    pending = client.draw(2, bytes(4))
    client.wait(pending)
    assert pending.operation == "unknown"
    assert (image(client, 5) == 5).all()
    client.close()


def test_every_client_gets_its_own_picture(server: Any) -> None:
    address, serving, drawer = server
    drawer.layouts.add(1)
    got: dict[int, bool] = {}

    def ask(colour: int) -> None:
        client = connect(address)
        got[colour] = all((image(client, colour) == colour).all() for _ in range(20))
        client.close()

    threads = [threading.Thread(target=ask, args=(colour,)) for colour in range(1, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert got == dict.fromkeys(range(1, 6), True)
    counted = serving.statistics.as_dict()
    assert counted["images"] == 100
    assert counted["batches"] <= 100


@pytest.mark.parametrize("colour", [IMPOSSIBLE, FAILS_LATER])
def test_a_scene_that_cannot_be_drawn_ends_the_run_and_the_process_goes_on(
    server: Any, colour: float
) -> None:
    address, _, drawer = server
    drawer.layouts.add(1)
    client = connect(address)
    with pytest.raises(PluginError) as failed:
        image(client, colour)
    assert failed.value.code == "render.failed"
    assert (image(client, 3) == 3).all()


def test_a_client_that_leaves_disturbs_no_other(server: Any) -> None:
    address, _, drawer = server
    drawer.layouts.add(1)
    stays, leaves = connect(address), connect(address)
    leaves.close()
    with socket.socket(socket.AF_UNIX) as silent:  # dies before it has sent its memory
        silent.connect(address)
    assert (image(stays, 9) == 9).all()


def test_a_process_that_is_gone_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(PluginError) as lost:
        connect(str(tmp_path / "none"))
    assert lost.value.code == "render.process-ended"


def test_gl_by_name_is_the_default_and_warp_is_another_protocol() -> None:
    default, named = MetaworldConfig(), MetaworldConfig(renderer=Renderer.GL)
    drawn = MetaworldConfig(renderer=Renderer.WARP, renderer_python="/any")
    assert defining_fields(default) == defining_fields(named)
    assert defining_fields(drawn)["renderer"] == "warp"
    assert "renderer_python" not in defining_fields(drawn)
    assert defining_fields(drawn) != defining_fields(default)


def test_the_address_is_not_part_of_the_fingerprint_but_the_versions_are() -> None:
    variables = {DRAWER_VARIABLE: "/a", RENDERER_VARIABLE: "warp on X", "MUJOCO_GL": "disable"}
    assert lasting_variables(variables) == {
        RENDERER_VARIABLE: "warp on X",
        "MUJOCO_GL": "disable",
    }


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        ({"samples_per_pixel": 4}, "flag.conflict"),
        ({"renderer_device": RendererDevice.CPU}, "flag.conflict"),
        ({"renderer": Renderer.WARP, "samples_per_pixel": 2}, "flag.out-of-range"),
        ({"renderer": Renderer.WARP, "shadow_map": 1024}, "flag.conflict"),
        ({"renderer": Renderer.WARP, "python": "/any"}, "flag.conflict"),
    ],
)
def test_flags_that_do_not_fit_are_refused(flags: dict[str, Any], code: str) -> None:
    with pytest.raises(UsageError) as refused:
        MetaworldConfig(**flags).render_settings()
    assert refused.value.code == code


def test_warp_gets_samples_per_axis_and_its_shadows() -> None:
    flags = {"renderer": Renderer.WARP, "samples_per_pixel": 4, "shadow_map": 0}
    settings = MetaworldConfig(**flags).render_settings()
    assert settings.samples_per_axis == 2
    assert not settings.has_shadows


def test_a_missing_interpreter_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    installed = RenderSettings(8, 8, renderer=Renderer.WARP)
    elsewhere = RenderSettings(8, 8, renderer=Renderer.WARP, python=str(tmp_path / "none"))
    for settings, code in ((installed, "render.not-installed"), (elsewhere, "env.no-interpreter")):
        with pytest.raises(UsageError) as refused:
            render_variables(settings, needed=True)
        assert refused.value.code == code
