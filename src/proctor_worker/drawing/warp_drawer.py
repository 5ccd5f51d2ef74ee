"""Draws requests with mujoco-warp: one launch draws all worlds of a batch, of any tasks.

Scenes share a model of slots (``slots``) and one pool of meshes and textures (``asset_pool``).
What differs between worlds is set for each world, so a pixel depends on its own world only. On a
GPU a batch is one upload and one CUDA graph. While it is drawn, the next batch is prepared.
"""

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
from proctor_worker.drawing.scene import DrawRequest
from proctor_worker.drawing.slots import Slots, slot_counts, slot_kinds, slots_of_geoms

WORLDS = 64
"""Worlds of one launch; a larger batch takes several launches."""
_MOST_CONTEXTS = 32
_MOST_LOOKS = 4096
_TEXTURE_ROLES = 10


class _Looks(NamedTuple):
    """What a scene's geoms look like, apart from the numbers that change from step to step."""

    slots: Slots
    taken: "np.ndarray[Any, Any]"
    """The slot of each geom."""
    rows: "np.ndarray[Any, Any]"
    """The columns of all slots from ``MESH_NUMBER`` on, float32 [S, n]."""
    sky: Tuple[int, int]
    """Texture and width of the sky box."""


class WarpDrawer:
    """Draws batches of requests on one device."""

    def __init__(self, device: str) -> None:
        self._device = warp.get_device(device)
        self._pool = AssetPool()
        self._looks: Dict[Tuple[Any, ...], _Looks] = {}
        self._contexts: "OrderedDict[Tuple[Any, ...], _SceneContext]" = OrderedDict()

    def add_assets(self, key: str, assets: Mapping[str, Any]) -> None:
        """Keep a model's meshes, textures and materials under ``key``."""
        self._pool.add(key, assets)

    def has_assets(self, key: str) -> bool:
        """Return whether requests with these assets can be drawn."""
        return key in self._pool

    def draw(self, requests: Sequence[DrawRequest]) -> List["np.ndarray[Any, Any]"]:
        """Return the pictures of ``requests``, uint8 [H, W, 3] each, in their order."""
        return [image.copy() for image in self.begin(requests).images()]

    def begin(self, requests: Sequence[DrawRequest]) -> "Drawing":
        """Begin to draw ``requests``; on a GPU this returns before it is done."""
        with warp.ScopedDevice(self._device):
            if self._pool.trim():
                self._looks.clear()
            looks = [self._looks_of(request) for request in requests]
            groups: Dict[Tuple[Any, ...], List[int]] = {}
            for number, (request, look) in enumerate(zip(requests, looks)):
                kind = (look.slots, look.sky[0] != NONE, *request.view())
                groups.setdefault(kind, []).append(number)
            parts = []
            for kind, numbers in groups.items():
                context = self._context(kind, requests[numbers[0]])
                for first in range(0, len(numbers), WORLDS):
                    now = numbers[first : first + WORLDS]
                    worlds = [(requests[number], looks[number]) for number in now]
                    parts.append((now, context, context.begin(worlds)))
        return Drawing(len(requests), parts)

    def _looks_of(self, request: DrawRequest) -> _Looks:
        columns = request.geom_ints[:, (scene.TYPE, scene.DATAID, scene.MATID)]
        key = (request.assets, columns.tobytes())
        if key not in self._looks:
            if len(self._looks) >= _MOST_LOOKS:
                self._looks.clear()
            self._looks[key] = self._make_looks(request)
        return self._looks[key]

    def _make_looks(self, request: DrawRequest) -> _Looks:
        pool, model = self._pool, self._pool.model(request.assets)
        kinds = request.geom_ints[:, scene.TYPE]
        slots = slot_counts(kinds)
        taken = slots_of_geoms(kinds, slots)
        is_mesh = np.flatnonzero(kinds == scene.MESH)
        meshes = request.geom_ints[is_mesh, scene.DATAID] // 2
        pool.upload(model, np.unique(meshes).tolist())
        rows = np.zeros((len(slot_kinds(slots)), kernels.SLOT_FLOATS), np.float32)
        rows[:, kernels.MESH_NUMBER] = rows[:, kernels.TEXTURE] = NONE
        rows[:, kernels.OFFSET_MAT : kernels.OFFSET_MAT + 9] = np.eye(3).ravel()
        numbers = [pool.mesh_number(model, int(mesh)) for mesh in meshes]
        of_meshes = taken[is_mesh]
        rows[of_meshes, kernels.MESH_NUMBER] = numbers
        rows[of_meshes, kernels.OFFSET_POS : kernels.OFFSET_POS + 3] = pool.offset_pos[numbers]
        turns = pool.offset_mat[numbers].reshape(-1, 9)
        rows[of_meshes, kernels.OFFSET_MAT : kernels.OFFSET_MAT + 9] = turns
        textures = pool.texture_numbers(model)
        _set_materials(rows, taken, request, model.assets, textures)
        sky = (NONE, 1)
        if model.sky != NONE:
            number = int(textures[model.sky])
            sky = (number, pool.texture_width(number))
        return _Looks(slots, taken, rows[:, scene.GEOM_FLOATS :].copy(), sky)

    def _context(self, kind: Tuple[Any, ...], first: DrawRequest) -> "_SceneContext":
        context = self._contexts.get(kind)
        if context is None:
            context = _SceneContext(kind[0], first, self._device, has_sky=kind[1])
            self._contexts[kind] = context
            while len(self._contexts) > _MOST_CONTEXTS:
                self._contexts.popitem(last=False)
        self._contexts.move_to_end(kind)
        context.adopt(self._pool)
        return context


def _set_materials(
    rows: Any, taken: Any, request: DrawRequest, assets: Mapping[str, Any], textures: Any
) -> None:
    """Set the texture columns of the taken slots; a material of -1 is none."""
    of_material = np.append(assets["mat_texid"][:, kernels.RGB_ROLE], NONE)
    repeats = np.concatenate([assets["mat_texrepeat"].reshape(-1, 2), np.ones((1, 2))])
    uniform = np.append(assets["mat_texuniform"].ravel(), 0)
    materials = request.geom_ints[:, scene.MATID]
    rows[taken, kernels.TEXTURE] = textures[of_material[materials]]
    rows[taken, kernels.REPEAT_X : kernels.REPEAT_Y + 1] = repeats[materials]
    rows[taken, kernels.UNIFORM] = uniform[materials]


class Drawing:
    """A batch that is being drawn."""

    def __init__(self, count: int, parts: Sequence[Tuple[List[int], Any, "_Lane"]]) -> None:
        self._count, self._parts = count, parts

    def images(self) -> List["np.ndarray[Any, Any]"]:
        """Wait; return the pictures in order. They are valid until the next ``images``."""
        drawn: List[Any] = [None] * self._count
        for numbers, context, lane in self._parts:
            for number, image in zip(numbers, context.finish(lane)):
                drawn[number] = image
        return drawn


class _Lane:
    """Input rows and pictures of one batch, on the host and on the device, and its graphs."""

    def __init__(self, slots: int, lights: int, pixels: int, device: Any) -> None:
        shapes = (
            (WORLDS, slots, kernels.SLOT_FLOATS),
            (WORLDS, lights, kernels.LIGHT_ROW_FLOATS),
            (WORLDS, 1, kernels.CAMERA_FLOATS),
        )
        cuda = device.is_cuda
        self.sent = [warp.zeros(shape, dtype=float, device="cpu", pinned=cuda) for shape in shapes]
        self.geoms, self.lights, self.cameras = (array.numpy() for array in self.sent)
        self.received = self.sent
        self.rgb = warp.zeros((WORLDS, 3 * pixels), dtype=warp.uint8)
        self.pictures = self.rgb
        if cuda:
            self.received = [warp.zeros(shape, dtype=float) for shape in shapes]
            shape = (WORLDS, 3 * pixels)
            self.pictures = warp.zeros(shape, dtype=warp.uint8, device="cpu", pinned=True)
        self.looks: List[Any] = [None] * WORLDS
        self.graphs: Dict[int, Any] = {}
        self.count = 0
        self.done = warp.Event(device) if cuda else None

    def fill(self, worlds: Sequence[Tuple[DrawRequest, _Looks]]) -> None:
        """Write the rows of a batch."""
        self.count = len(worlds)
        for number, (request, look) in enumerate(worlds):
            slots = self.geoms[number]
            if self.looks[number] is not look:
                slots[:, : scene.GEOM_FLOATS] = 0.0  # empty slots: no size, no opacity
                slots[:, scene.GEOM_FLOATS :] = look.rows
                self.looks[number] = look
            slots[look.taken, : scene.GEOM_FLOATS] = request.geom_floats
            lights = self.lights[number]
            lights[:, : scene.LIGHT_FLOATS] = request.light_floats
            lights[:, kernels.CASTS] = request.light_ints[:, scene.CASTSHADOW]
            camera = self.cameras[number, 0]
            camera[: scene.FOVY] = request.camera[: scene.FOVY]
            camera[kernels.SKY], camera[kernels.SKY_WIDTH] = look.sky


class _SceneContext:
    """Device memory of one shared model, for ``WORLDS`` worlds."""

    def __init__(self, slots: Slots, first: DrawRequest, device: Any, *, has_sky: bool) -> None:
        flat = compile_slots(slots, first, has_sky=has_sky)
        quality = first.quality
        self._device, self._quality = device, quality
        self._n_slots, self._n_lights = flat.ngeom, len(first.light_ints)
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
        self._version = NONE
        self._free: List[_Lane] = []
        self._lanes: List[_Lane] = []
        self._has_drawn = False
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

    def begin(self, worlds: Sequence[Tuple[DrawRequest, _Looks]]) -> _Lane:
        """Begin to draw at most ``WORLDS`` worlds."""
        lane = self._free.pop() if self._free else self._new_lane()
        lane.fill(worlds)
        if self._stream is None:
            self._enqueue(lane)
            return lane
        with warp.ScopedStream(self._stream):
            if not self._has_drawn:  # kernels are compiled and loaded outside of a capture
                self._enqueue(lane)
                self._has_drawn = True
            if lane.count not in lane.graphs:
                with warp.ScopedCapture(stream=self._stream, force_module_load=False) as capture:
                    self._enqueue(lane)
                lane.graphs[lane.count] = capture.graph
            warp.capture_launch(lane.graphs[lane.count], stream=self._stream)
            self._stream.record_event(lane.done)
        return lane

    def _new_lane(self) -> _Lane:
        pixels = self._quality.height * self._quality.width
        lane = _Lane(self._n_slots, self._n_lights, pixels, self._device)
        self._lanes.append(lane)
        warp.synchronize_device(self._device)
        return lane

    def finish(self, lane: _Lane) -> "np.ndarray[Any, Any]":
        """Wait for a batch; return its pictures, uint8 [count, H, W, 3]."""
        if lane.done is not None:
            warp.synchronize_event(lane.done)
        self._free.append(lane)
        shape = (lane.count, self._quality.height, self._quality.width, 3)
        pictures: "np.ndarray[Any, Any]" = lane.pictures.numpy()
        return pictures[: lane.count].reshape(shape)

    def _enqueue(self, lane: _Lane) -> None:
        """Upload, draw and download one batch."""
        count, model, data, target = lane.count, self._model, self._data, self._target
        if self._stream is not None:
            for received, sent in zip(lane.received, lane.sent):
                warp.copy(received, sent, count=count * sent.shape[1] * sent.shape[2])
        data.nworld = count
        geoms, lights, cameras = lane.received
        warp.launch(
            kernels.place_geoms,
            dim=(count, self._n_slots),
            inputs=[geoms, self._kinds],
            outputs=[
                *(data.geom_xpos, data.geom_xmat, model.geom_size, model.geom_rgba),
                *(model.geom_dataid, model.mat_texid, model.mat_texrepeat, model.mat_texuniform),
                *(model.mat_emission, model.mat_specular, model.mat_shininess),
            ],
        )
        warp.launch(
            kernels.place_lights,
            dim=(count, self._n_lights),
            inputs=[lights],
            outputs=[
                *(data.light_xpos, data.light_xdir, model.light_ambient, model.light_diffuse),
                *(model.light_specular, model.light_castshadow),
            ],
        )
        warp.launch(
            kernels.place_camera,
            dim=count,
            inputs=[cameras],
            outputs=[
                *(data.cam_xpos, data.cam_xmat),
                *(target.skybox_tex_id, target.skybox_face_width),
            ],
        )
        mujoco_warp.refit_bvh(model, data, target)
        mujoco_warp.render(model, data, target)
        pixels = lane.rgb.shape[1] // 3
        warp.launch(
            kernels.unpack_rgb, dim=(count, pixels), inputs=[target.rgb_data], outputs=[lane.rgb]
        )
        if self._stream is not None:
            warp.copy(lane.pictures, lane.rgb, count=count * lane.rgb.shape[1])
