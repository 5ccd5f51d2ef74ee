"""Draws requests with mujoco-warp: one launch draws all worlds of a batch, of any tasks.

Scenes share a model of slots (``slots``) and one pool of meshes and textures (``asset_pool``).
What differs between worlds is set for each world, so a pixel depends on its own world only. On a
GPU a batch is one upload and one CUDA graph. While it is drawn, the next batch is prepared.
"""

import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, NamedTuple, Sequence, Tuple

if TYPE_CHECKING:
    import numpy as np
else:
    from proctor_worker.lazy_numpy import np

import mujoco_warp
import warp

from proctor_worker.drawing import scene
from proctor_worker.drawing import scene_kernels as kernels
from proctor_worker.drawing.asset_pool import NONE, AssetPool
from proctor_worker.drawing.compiled_models import compile_slots
from proctor_worker.drawing.scene import DrawRequest, SceneLayout
from proctor_worker.drawing.slots import slot_counts, slot_kinds, slots_of_geoms

WORLDS = 64
"""Worlds of one launch; a larger batch takes several launches."""
LAYOUTS = 512
"""Layouts that one context knows."""
_MOST_CONTEXTS = 32
_TEXTURE_ROLES = 10


class _Scene(NamedTuple):
    """A layout as it is drawn."""

    number: int
    layout: SceneLayout
    kind: Tuple[Any, ...]
    """What is equal for the pictures of one launch."""
    slots: "np.ndarray[Any, Any]"
    """Its part of the table of slots, float32 [S, SLOT_FLOATS]."""
    facts: "np.ndarray[Any, Any]"
    """Its part of the table of layouts, float32 [CASTS + lights]."""


class WarpDrawer:
    """Draws batches of requests on one device."""

    def __init__(self, device: str) -> None:
        self._device = warp.get_device(device)
        self._pool = AssetPool()
        self._numbers: Dict[SceneLayout, int] = {}
        self._scenes: Dict[int, _Scene] = {}
        self._next_number = 0
        self._contexts: "OrderedDict[Tuple[Any, ...], _SceneContext]" = OrderedDict()

    def add_assets(self, key: str, assets: Mapping[str, Any]) -> None:
        """Keep a model's meshes, textures and materials under ``key``."""
        self._pool.add(key, assets)

    def has_assets(self, key: str) -> bool:
        """Return whether layouts with these assets can be added."""
        return key in self._pool

    def add_layout(self, layout: SceneLayout) -> int:
        """Prepare to draw scenes of this layout; return its number.

        Where there is no room for another layout, all numbers so far become unknown.
        """
        if layout in self._numbers:
            return self._numbers[layout]
        with warp.ScopedDevice(self._device):
            if self._pool.trim() or len(self._scenes) >= LAYOUTS:
                warp.synchronize_device(self._device)  # a batch under way uses them
                self._scenes.clear()
                self._numbers.clear()
                for context in self._contexts.values():
                    context.forget_layouts()
            number = self._next_number
            self._scenes[number] = made = self._make_scene(number, layout)
            self._context(made)  # compiled now: other clients need not wait for it
        self._numbers[layout] = number
        self._next_number += 1
        return number

    def has_layout(self, number: int) -> bool:
        """Return whether scenes of the layout ``number`` can be drawn."""
        return number in self._scenes

    def statistics(self) -> Dict[str, Any]:
        """Return counts of what was prepared, and the seconds of capturing CUDA graphs."""
        contexts = self._contexts.values()
        return {
            "layouts": self._next_number,
            "contexts": len(contexts),
            "graphs": sum(context.captures for context in contexts),
            "graph_s": round(sum(context.capture_s for context in contexts), 3),
        }

    def draw(self, requests: Sequence[DrawRequest]) -> List["np.ndarray[Any, Any]"]:
        """Return the pictures of ``requests``, uint8 [H, W, 3] each, in their order."""
        worlds = [(self.add_layout(request.layout), request.numbers) for request in requests]
        return [image.copy() for image in self.begin(worlds).images()]

    def begin(self, worlds: Sequence[Tuple[int, bytes]]) -> "Drawing":
        """Begin to draw ``worlds``; on a GPU this returns before it is done."""
        scenes = [self._scenes[number] for number, _ in worlds]
        groups: Dict[Tuple[Any, ...], List[int]] = {}
        for index, found in enumerate(scenes):
            groups.setdefault(found.kind, []).append(index)
        parts = []
        with warp.ScopedDevice(self._device):
            for indices in groups.values():
                context = self._context(scenes[indices[0]])
                for first in range(0, len(indices), WORLDS):
                    now = indices[first : first + WORLDS]
                    lane = context.begin([(scenes[index], worlds[index][1]) for index in now])
                    parts.append((now, context, lane))
        return Drawing(len(worlds), parts)

    def _make_scene(self, number: int, layout: SceneLayout) -> _Scene:
        pool, model, geoms = self._pool, self._pool.model(layout.assets), layout.geoms
        kinds = geoms[:, scene.TYPE]
        counts = slot_counts(kinds)
        taken = slots_of_geoms(kinds, counts)
        is_mesh = np.flatnonzero(kinds == scene.MESH)
        meshes = geoms[is_mesh, scene.DATAID] // 2
        pool.upload(model, np.unique(meshes).tolist())
        slots = np.zeros((len(slot_kinds(counts)), kernels.SLOT_FLOATS), np.float32)
        slots[:, [kernels.GEOM, kernels.MESH_NUMBER, kernels.TEXTURE]] = NONE
        slots[taken, kernels.GEOM] = np.arange(len(taken))
        slots[:, kernels.OFFSET_MAT : kernels.OFFSET_MAT + 9] = np.eye(3).ravel()
        numbers = [pool.mesh_number(model, int(mesh)) for mesh in meshes]
        of_meshes = taken[is_mesh]
        slots[of_meshes, kernels.MESH_NUMBER] = numbers
        slots[of_meshes, kernels.OFFSET_POS : kernels.OFFSET_POS + 3] = pool.offset_pos[numbers]
        turns = pool.offset_mat[numbers].reshape(-1, 9)
        slots[of_meshes, kernels.OFFSET_MAT : kernels.OFFSET_MAT + 9] = turns
        textures = pool.texture_numbers(model)
        _set_materials(slots, taken, geoms[:, scene.MATID], model.assets, textures)
        sky = (NONE, 1)
        if model.sky != NONE:
            sky = (int(textures[model.sky]), pool.texture_width(int(textures[model.sky])))
        casts = layout.lights[:, scene.CASTSHADOW]
        facts = np.array([*sky, layout.rotated, *casts], np.float32)
        kind = (counts, sky[0] != NONE, *layout.view)
        return _Scene(number, layout, kind, slots, facts)

    def _context(self, made: _Scene) -> "_SceneContext":
        context = self._contexts.get(made.kind)
        if context is None:
            context = _SceneContext(made, self._device)
            self._contexts[made.kind] = context
            while len(self._contexts) > _MOST_CONTEXTS:
                self._contexts.popitem(last=False)
        self._contexts.move_to_end(made.kind)
        context.adopt(self._pool)
        return context


def _set_materials(
    slots: Any, taken: Any, materials: Any, assets: Mapping[str, Any], textures: Any
) -> None:
    """Set the texture columns of the taken slots; a material of -1 is none."""
    of_material = np.append(assets["mat_texid"][:, kernels.RGB_ROLE], NONE)
    repeats = np.concatenate([assets["mat_texrepeat"].reshape(-1, 2), np.ones((1, 2))])
    uniform = np.append(assets["mat_texuniform"].ravel(), 0)
    slots[taken, kernels.TEXTURE] = textures[of_material[materials]]
    slots[taken, kernels.REPEAT_X : kernels.REPEAT_Y + 1] = repeats[materials]
    slots[taken, kernels.UNIFORM] = uniform[materials]


class Drawing:
    """A batch that is being drawn."""

    def __init__(self, count: int, parts: Sequence[Tuple[List[int], Any, "_Lane"]]) -> None:
        self._count, self._parts = count, parts

    def is_done(self) -> bool:
        """Return whether ``images`` need not wait."""
        return all(lane.done is None or lane.done.is_complete for _, _, lane in self._parts)

    def images(self) -> List["np.ndarray[Any, Any]"]:
        """Wait; return the pictures in order. They are valid until the batch after the next."""
        drawn: List[Any] = [None] * self._count
        for numbers, context, lane in self._parts:
            for number, image in zip(numbers, context.finish(lane)):
                drawn[number] = image
        return drawn


class _Lane:
    """Rows and pictures of one batch, on the host and on the device, and its graphs."""

    def __init__(self, row_floats: int, pixels: int, device: Any) -> None:
        cuda = device.is_cuda
        shape = (WORLDS, row_floats)
        self.sent = warp.zeros(shape, dtype=float, device="cpu", pinned=cuda)
        self.rows: "np.ndarray[Any, Any]" = self.sent.numpy()
        self.received = warp.zeros(shape, dtype=float) if cuda else self.sent
        shape = (WORLDS, 3 * pixels)
        self.rgb = warp.zeros(shape, dtype=warp.uint8)
        self.pictures = self.rgb
        if cuda:
            self.pictures = warp.zeros(shape, dtype=warp.uint8, device="cpu", pinned=True)
        self.images: "np.ndarray[Any, Any]" = self.pictures.numpy()
        self.graphs: Dict[int, Any] = {}
        self.count = 0
        self.done = warp.Event(device) if cuda else None


class _SceneContext:
    """Device memory of one shared model, for ``WORLDS`` worlds."""

    def __init__(self, first: _Scene, device: Any) -> None:
        slots, has_sky, quality = first.kind[:3]
        flat = compile_slots(slots, first.layout, has_sky=has_sky)
        self._device, self._quality = device, quality
        self._n_slots, self._n_lights = flat.ngeom, len(first.layout.lights)
        self._first_geom = kernels.LIGHTS + self._n_lights * scene.LIGHT_FLOATS
        self._row_floats = self._first_geom + self._n_slots * scene.GEOM_FLOATS
        self._kinds = warp.array(slot_kinds(slots), dtype=int)
        self._model = mujoco_warp.put_model(flat)
        self._data = mujoco_warp.make_data(flat, nworld=WORLDS)
        self._target = mujoco_warp.create_render_context(
            flat,
            nworld=WORLDS,
            cam_res=(quality.width, quality.height),
            render_rgb=True,
            render_depth=False,
            render_seg=False,
            use_shadows=quality.shadows,
            shadow_light_fraction=0.0,
            samples_per_pixel=quality.samples,
            render_skybox=has_sky,
            use_fast_math=False,
        )
        self._allocate()
        self._slots = warp.zeros((LAYOUTS, self._n_slots, kernels.SLOT_FLOATS), dtype=float)
        self._layouts = warp.zeros((LAYOUTS, kernels.CASTS + self._n_lights), dtype=float)
        self._rows_of: Dict[int, int] = {}
        self._version = NONE
        self._free: List[_Lane] = []
        self._lanes: List[_Lane] = []
        self._has_drawn = False
        self.captures, self.capture_s = 0, 0.0
        self._stream = warp.Stream(device) if device.is_cuda else None
        warp.synchronize_device(device)

    def _allocate(self) -> None:
        """Give the model arrays with a row for each world."""
        slots, lights = self._n_slots, self._n_lights
        shapes = {
            "geom_size": ((slots,), warp.vec3),
            "geom_rgba": ((slots,), warp.vec4),
            "geom_dataid": ((slots,), int),
            "mat_texid": ((slots, _TEXTURE_ROLES), int),
            "mat_texrepeat": ((slots,), warp.vec2),
            "mat_texuniform": ((slots,), bool),
            "mat_emission": ((slots,), float),
            "mat_specular": ((slots,), float),
            "mat_shininess": ((slots,), float),
            "light_castshadow": ((lights,), bool),
            "light_ambient": ((lights,), warp.vec3),
            "light_diffuse": ((lights,), warp.vec3),
            "light_specular": ((lights,), warp.vec3),
        }
        for name, (shape, kind) in shapes.items():
            setattr(self._model, name, warp.zeros((WORLDS, *shape), dtype=kind))
        self._target.skybox_tex_id = warp.zeros(WORLDS, dtype=int)
        self._target.skybox_face_width = warp.ones(WORLDS, dtype=int)

    def adopt(self, pool: AssetPool) -> None:
        """Draw with the pool's meshes and textures."""
        if self._version == pool.version:
            return
        warp.synchronize_device(self._device)  # a batch under way uses the old arrays
        for name, array in pool.device_arrays().items():
            setattr(self._target if hasattr(self._target, name) else self._model, name, array)
        for lane in self._lanes:
            lane.graphs.clear()
        self._version = pool.version

    def forget_layouts(self) -> None:
        """Forget all layouts; no batch may be under way."""
        self._rows_of.clear()

    def _row_of(self, made: _Scene) -> int:
        """Return the row of a layout in the tables; a new one is uploaded."""
        row = self._rows_of.get(made.number)
        if row is None:
            row = len(self._rows_of)
            self._slots[row : row + 1].assign(made.slots[None])
            self._layouts[row : row + 1].assign(made.facts[None])
            warp.synchronize_device(self._device)  # the graphs run on another stream
            self._rows_of[made.number] = row
        return row

    def begin(self, worlds: Sequence[Tuple[_Scene, bytes]]) -> _Lane:
        """Begin to draw at most ``WORLDS`` worlds."""
        lane = self._free.pop() if self._free else self._new_lane()
        for row, (made, numbers) in zip(lane.rows, worlds):
            row[0] = self._row_of(made)
            row[1 : 1 + len(numbers) // 4] = np.frombuffer(numbers, np.float32)
        lane.count = len(worlds)
        if self._stream is None:
            self._enqueue(lane, lane.count)
            return lane
        size = _rounded_up(lane.count)
        lane.rows[lane.count : size] = lane.rows[0]
        with warp.ScopedStream(self._stream):
            if not self._has_drawn:  # kernels are compiled and loaded outside of a capture
                self._enqueue(lane, size)
                self._has_drawn = True
            if size not in lane.graphs:
                self._capture(lane, size)
            warp.capture_launch(lane.graphs[size], stream=self._stream)
            self._stream.record_event(lane.done)
        return lane

    def _capture(self, lane: _Lane, size: int) -> None:
        """Make the CUDA graph of a lane for so many worlds."""
        start = time.perf_counter()
        with warp.ScopedCapture(stream=self._stream, force_module_load=False) as capture:
            self._enqueue(lane, size)
        lane.graphs[size] = capture.graph
        self.captures += 1
        self.capture_s += time.perf_counter() - start

    def _new_lane(self) -> _Lane:
        pixels = self._quality.height * self._quality.width
        lane = _Lane(self._row_floats, pixels, self._device)
        self._lanes.append(lane)
        warp.synchronize_device(self._device)
        return lane

    def finish(self, lane: _Lane) -> "np.ndarray[Any, Any]":
        """Wait for a batch; return its pictures, uint8 [count, H, W, 3]."""
        if lane.done is not None:
            warp.synchronize_event(lane.done)
        self._free.insert(0, lane)  # used last: its pictures are still to be copied
        shape = (lane.count, self._quality.height, self._quality.width, 3)
        return lane.images[: lane.count].reshape(shape)

    def _enqueue(self, lane: _Lane, size: int) -> None:
        """Upload, draw and download ``size`` worlds."""
        model, data, target, rows = self._model, self._data, self._target, lane.received
        if self._stream is not None:
            warp.copy(rows, lane.sent, count=size * self._row_floats)
        data.nworld = size
        warp.launch(
            kernels.place_geoms,
            dim=(size, self._n_slots),
            inputs=[rows, self._slots, self._first_geom, self._kinds],
            outputs=[
                *(data.geom_xpos, data.geom_xmat, model.geom_size, model.geom_rgba),
                *(model.geom_dataid, model.mat_texid, model.mat_texrepeat, model.mat_texuniform),
                *(model.mat_emission, model.mat_specular, model.mat_shininess),
            ],
        )
        warp.launch(
            kernels.place_lights,
            dim=(size, self._n_lights),
            inputs=[rows, self._layouts],
            outputs=[
                *(data.light_xpos, data.light_xdir, model.light_ambient, model.light_diffuse),
                *(model.light_specular, model.light_castshadow),
            ],
        )
        warp.launch(
            kernels.place_camera,
            dim=size,
            inputs=[rows, self._layouts],
            outputs=[
                *(data.cam_xpos, data.cam_xmat),
                *(target.skybox_tex_id, target.skybox_face_width),
            ],
        )
        mujoco_warp.refit_bvh(model, data, target)
        mujoco_warp.render(model, data, target)
        pixels = lane.rgb.shape[1] // 3
        warp.launch(
            kernels.unpack_rgb,
            dim=(size, pixels),
            inputs=[rows, self._layouts, target.rgb_data, pixels],
            outputs=[lane.rgb],
        )
        if self._stream is not None:
            warp.copy(lane.pictures, lane.rgb, count=size * lane.rgb.shape[1])


def _rounded_up(count: int) -> int:
    """Return the worlds that are drawn for ``count``: few sizes, so few graphs are captured."""
    step = 1 if count <= 4 else 2 if count <= 16 else 4 if count <= 32 else 8
    return -(-count // step) * step
