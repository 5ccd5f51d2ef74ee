"""Draws requests with mujoco-warp: one context per scene structure, made once and kept.

A context has room for several worlds; only the worlds of a batch are drawn. Poses, colours, lights
and the camera are set for each world, so a pixel depends on its own world only.
"""

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Tuple

if TYPE_CHECKING:
    import numpy as np
else:
    from proctor_worker.lazy_numpy import np

import mujoco
import mujoco_warp
import warp

from proctor_worker.drawing import scene
from proctor_worker.drawing.flat_model import RGB_ROLE, compile_flat_model, geom_sizes
from proctor_worker.drawing.scene import DrawRequest, Quality

WORLDS = 16
"""Worlds of one launch; a larger batch takes several launches."""
_MOST_CONTEXTS = 128
_TEXTURE_ROLES = 10


@warp.kernel  # type: ignore[untyped-decorator, unused-ignore]
def _unpack_rgb(packed: warp.array2d(dtype=warp.uint32), rgb: warp.array2d(dtype=warp.uint8)):  # type: ignore
    """Write the bytes of packed ARGB pixels as RGB triples."""
    world, pixel = warp.tid()
    value = packed[world, pixel]
    mask = warp.uint32(255)
    rgb[world, 3 * pixel + 0] = warp.uint8((value >> warp.uint32(16)) & mask)
    rgb[world, 3 * pixel + 1] = warp.uint8((value >> warp.uint32(8)) & mask)
    rgb[world, 3 * pixel + 2] = warp.uint8(value & mask)


class WarpDrawer:
    """Draws batches of requests on one device."""

    def __init__(self, device: str) -> None:
        self._device = warp.get_device(device)
        self._assets: "OrderedDict[str, Mapping[str, Any]]" = OrderedDict()
        self._contexts: "OrderedDict[Tuple[Any, ...], _SceneContext]" = OrderedDict()

    def add_assets(self, key: str, assets: Mapping[str, Any]) -> None:
        """Keep a model's meshes, textures and materials under ``key``."""
        self._assets[key] = assets
        _drop_oldest(self._assets)

    def has_assets(self, key: str) -> bool:
        """Return whether requests with these assets can be drawn."""
        return key in self._assets

    def draw(self, requests: Sequence[DrawRequest]) -> List["np.ndarray[Any, Any]"]:
        """Return the pictures of ``requests``, uint8 [H, W, 3] each, in their order."""
        groups: Dict[Tuple[Any, ...], List[int]] = {}
        for number, request in enumerate(requests):
            groups.setdefault(request.structure(), []).append(number)
        drawn: List[Any] = [None] * len(requests)
        with warp.ScopedDevice(self._device):
            while groups:
                launched = []
                for structure, numbers in list(groups.items()):
                    now, later = numbers[:WORLDS], numbers[WORLDS:]
                    groups[structure] = later
                    if not later:
                        del groups[structure]
                    worlds = [requests[number] for number in now]
                    context = self._context(structure, worlds[0])
                    context.launch(worlds)
                    launched.append((context, now))
                for context, now in launched:  # after all launches: they overlap on a GPU
                    for number, image in zip(now, context.images(len(now))):
                        drawn[number] = image
        return drawn

    def _context(self, structure: Tuple[Any, ...], first: DrawRequest) -> "_SceneContext":
        context = self._contexts.get(structure)
        if context is None:
            context = _SceneContext(self._assets[first.assets], first, self._device)
            self._contexts[structure] = context
            _drop_oldest(self._contexts)
        self._contexts.move_to_end(structure)
        self._assets.move_to_end(first.assets)
        return context


class _SceneContext:
    """Device memory of one scene structure: meshes, textures, and ``WORLDS`` sets of poses."""

    def __init__(self, assets: Mapping[str, Any], first: DrawRequest, device: Any) -> None:
        flat = compile_flat_model(assets, first)
        quality = first.quality
        self._quality: Quality = quality
        self._kinds = first.geom_ints[:, scene.TYPE]
        self._look_up = _MaterialTable(assets)
        self._offset_pos, self._offset_mat = _mesh_offsets(flat)
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
            render_skybox=True,
            use_fast_math=False,
        )
        pixels = quality.height * quality.width
        self._rgb = warp.zeros((WORLDS, 3 * pixels), dtype=warp.uint8)
        self._looks: Optional[bytes] = None
        self._per_world = self._allocate(len(first.geom_ints), len(first.light_ints))
        self._stream = warp.Stream(device) if device.is_cuda else None
        warp.synchronize_device(device)

    def _allocate(self, n_geoms: int, n_lights: int) -> Dict[str, Any]:
        """Give the model arrays with a row for each world; return them by name."""
        shapes = {
            "geom_size": (n_geoms, warp.vec3),
            "geom_rgba": (n_geoms, warp.vec4),
            "mat_texrepeat": (n_geoms, warp.vec2),
            "mat_texuniform": (n_geoms, bool),
            "mat_emission": (n_geoms, float),
            "mat_specular": (n_geoms, float),
            "mat_shininess": (n_geoms, float),
            "light_castshadow": (n_lights, bool),
            "light_ambient": (n_lights, warp.vec3),
            "light_diffuse": (n_lights, warp.vec3),
            "light_specular": (n_lights, warp.vec3),
        }
        made = {
            name: warp.zeros((WORLDS, count), dtype=kind) for name, (count, kind) in shapes.items()
        }
        made["mat_texid"] = warp.zeros((WORLDS, n_geoms, _TEXTURE_ROLES), dtype=int)
        for name, array in made.items():
            setattr(self._model, name, array)
        return made

    def launch(self, worlds: Sequence[DrawRequest]) -> None:
        """Begin to draw at most ``WORLDS`` requests; on a GPU this returns before it is done."""
        if self._stream is None:
            self._launch(worlds)
            return
        with warp.ScopedStream(self._stream):
            self._launch(worlds)

    def _launch(self, worlds: Sequence[DrawRequest]) -> None:
        count = len(worlds)
        geoms = np.stack([world.geom_floats for world in worlds])
        lights = np.stack([world.light_floats for world in worlds])
        cameras = np.stack([world.camera for world in worlds])
        self._set_looks(worlds, geoms, lights)
        turn = geoms[..., scene.MAT].reshape(count, -1, 3, 3)
        data = self._data
        data.nworld = count
        moved = geoms[..., scene.POS] + np.einsum("wgij,gj->wgi", turn, self._offset_pos)
        _set_rows(data.geom_xpos, moved)
        _set_rows(data.geom_xmat, turn @ self._offset_mat)
        _set_rows(data.light_xpos, lights[..., scene.LIGHT_POS])
        _set_rows(data.light_xdir, lights[..., scene.LIGHT_DIR])
        _set_rows(data.cam_xpos, cameras[:, None, scene.CAMERA_POS])
        _set_rows(data.cam_xmat, cameras[:, None, scene.CAMERA_MAT].reshape(count, 1, 3, 3))
        mujoco_warp.refit_bvh(self._model, data, self._target)
        mujoco_warp.render(self._model, data, self._target)
        pixels = self._rgb.shape[1] // 3
        inputs = [self._target.rgb_data]
        warp.launch(_unpack_rgb, dim=(count, pixels), inputs=inputs, outputs=[self._rgb])

    def _set_looks(self, worlds: Sequence[DrawRequest], geoms: Any, lights: Any) -> None:
        """Set sizes, colours, materials and light colours, if they differ from the last batch's."""
        matids = np.stack([world.geom_ints[:, scene.MATID] for world in worlds])
        shadows = np.stack([world.light_ints[:, scene.CASTSHADOW] for world in worlds])
        looks = b"".join(
            part.tobytes()
            for part in (
                *(matids, shadows, geoms[..., scene.SIZE]),
                *(geoms[..., scene.RGBA.start :], lights[..., scene.AMBIENT.start :]),
            )
        )
        if looks == self._looks:
            return
        textures, repeats, uniform = self._look_up.textures(matids)
        colours = (scene.AMBIENT, scene.DIFFUSE, scene.LIGHT_SPECULAR)
        names = ("light_ambient", "light_diffuse", "light_specular")
        values = {
            "geom_size": geom_sizes(self._kinds, geoms[..., scene.SIZE]),
            "geom_rgba": geoms[..., scene.RGBA],
            "mat_texid": textures,
            "mat_texrepeat": repeats,
            "mat_texuniform": uniform,
            "mat_emission": geoms[..., scene.EMISSION],
            "mat_specular": geoms[..., scene.SPECULAR],
            "mat_shininess": geoms[..., scene.SHININESS],
            "light_castshadow": shadows.astype(bool),
            **{name: lights[..., part] for name, part in zip(names, colours)},
        }
        for name, value in values.items():
            _set_rows(self._per_world[name], value)
        self._looks = looks

    def images(self, count: int) -> "np.ndarray[Any, Any]":
        """Wait for the launch; return its pictures, uint8 [count, H, W, 3]."""
        if self._stream is not None:
            warp.synchronize_stream(self._stream)
        height, width = self._quality.height, self._quality.width
        pictures = np.array(self._rgb[:count].numpy())  # on a CPU ``numpy`` copies nothing
        return pictures.reshape(count, height, width, 3)


class _MaterialTable:
    """The textures of a model's materials, by material number; -1 is a geom without material."""

    def __init__(self, assets: Mapping[str, Any]) -> None:
        none = -np.ones((1, _TEXTURE_ROLES), np.int32)
        only_rgb = -np.ones((len(assets["mat_texid"]), _TEXTURE_ROLES), np.int32)
        only_rgb[:, RGB_ROLE] = assets["mat_texid"][:, RGB_ROLE]
        self._texture = np.concatenate([only_rgb, none])  # the last row is number -1
        self._repeat = np.concatenate(
            [assets["mat_texrepeat"].reshape(-1, 2), np.ones((1, 2), np.float32)]
        )
        self._uniform = np.concatenate([assets["mat_texuniform"].ravel(), [0]]).astype(bool)

    def textures(self, materials: Any) -> Tuple[Any, Any, Any]:
        """Return texture numbers [..., 10], repeats [..., 2] and uniform flags of materials."""
        return self._texture[materials], self._repeat[materials], self._uniform[materials]


def _mesh_offsets(flat: Any) -> Tuple[Any, Any]:
    """Return the pose of each geom's compiled frame in its own frame: [G, 3] and [G, 3, 3].

    The compiler moves a mesh to its centre and principal axes.
    """
    position = np.zeros((flat.ngeom, 3), np.float32)
    turn = np.tile(np.eye(3, dtype=np.float32), (flat.ngeom, 1, 1))
    matrix = np.zeros(9)
    for geom in np.flatnonzero(flat.geom_type == scene.MESH):
        mesh = flat.geom_dataid[geom]
        position[geom] = flat.mesh_pos[mesh]
        mujoco.mju_quat2Mat(matrix, flat.mesh_quat[mesh])
        turn[geom] = matrix.reshape(3, 3)
    return position, turn


def _set_rows(array: Any, values: Any) -> None:
    """Copy ``values`` to the first rows of a device array."""
    if values.size:
        rows = array[: len(values)]
        rows.assign(np.ascontiguousarray(values, dtype=_numpy_type(values)))


def _numpy_type(values: Any) -> Any:
    return np.float32 if values.dtype.kind == "f" else values.dtype


def _drop_oldest(kept: "OrderedDict[Any, Any]") -> None:
    while len(kept) > _MOST_CONTEXTS:
        kept.popitem(last=False)
