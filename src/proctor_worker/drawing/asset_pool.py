"""Meshes and textures on the device. Models share them: each is uploaded once."""

import hashlib
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Sequence

if TYPE_CHECKING:
    import numpy as np
else:
    from proctor_worker.lazy_numpy import np

import mujoco
import mujoco_warp
import warp

from proctor_worker.drawing.compiled_models import (
    Part,
    compile_assets,
    mesh_parts,
    texture_bytes,
)

NONE = -1
_MOST_MODELS = 128
_MOST_BYTES = 2**33
"""Device memory of textures from which the pool begins anew."""
_TEXEL_BYTES = 16


class AssetPool:
    """The assets of all models that were sent, and the parts of them that are on the device."""

    def __init__(self) -> None:
        self._models: "OrderedDict[str, _ModelAssets]" = OrderedDict()
        self.version = 0
        """Grows when the arrays on the device are others."""
        self._begin()

    def _begin(self) -> None:
        self._meshes: Dict[bytes, int] = {}
        self._textures: Dict[bytes, int] = {}
        self._texture_bytes = 0
        self._host: Dict[str, List[Any]] = {name: [] for name in _COLUMNS}
        self._sizes = {"face": 0, "normal": 0, "texcoord": 0}
        self._kept: List[Any] = []
        self._texture_objects: List[Any] = []
        self.offset_pos = np.zeros((0, 3), np.float32)
        self.offset_mat = np.zeros((0, 3, 3), np.float32)

    def trim(self) -> bool:
        """Free everything on the device if it is too much; return whether it was.

        Numbers of meshes and textures are then invalid.
        """
        if self._texture_bytes <= _MOST_BYTES:
            return False
        warp.synchronize()  # a batch under way uses them
        self._begin()
        return True

    def add(self, key: str, assets: Mapping[str, Any]) -> None:
        """Keep a model's assets under ``key``."""
        self._models[key] = _ModelAssets(assets)
        while len(self._models) > _MOST_MODELS:
            self._models.popitem(last=False)

    def __contains__(self, key: str) -> bool:
        return key in self._models

    def model(self, key: str) -> "_ModelAssets":
        """Return the assets of a model."""
        self._models.move_to_end(key)
        return self._models[key]

    def upload(self, model: "_ModelAssets", meshes: Sequence[int]) -> None:
        """Bring these meshes of a model, and its textures, to the device if they are not there."""
        new_meshes = {
            model.mesh_hash(mesh): (model.assets, mesh)
            for mesh in meshes
            if model.mesh_hash(mesh) not in self._meshes
        }
        new_textures = {
            found: (model.assets, number)
            for number, found in enumerate(model.texture_hashes)
            if found not in self._textures
        }
        if new_meshes or new_textures:
            self._append(new_meshes, new_textures)

    def mesh_number(self, model: "_ModelAssets", mesh: int) -> int:
        """Return the number of a model's mesh on the device."""
        return self._meshes[model.mesh_hash(mesh)]

    def texture_numbers(self, model: "_ModelAssets") -> "np.ndarray[Any, Any]":
        """Return the numbers of a model's textures; the last is that of no texture."""
        known = [self._textures[found] for found in model.texture_hashes]
        return np.array([*known, NONE], np.int32)

    def texture_width(self, number: int) -> int:
        """Return the width of a texture in pixels; a sky box has one of its six faces."""
        return int(self._texture_objects[number].width)

    def _append(self, meshes: Mapping[bytes, Part], textures: Mapping[bytes, Part]) -> None:
        compiled = compile_assets(list(meshes.values()), list(textures.values()))
        made = mujoco_warp.create_render_context(
            compiled, nworld=1, cam_res=(1, 1), render_rgb=True, render_depth=False
        )
        for found in meshes:
            self._meshes[found] = len(self._meshes)
        for found in textures:
            self._textures[found] = len(self._textures)
        self._texture_objects += made.textures_registry
        self._texture_bytes += sum(
            _TEXEL_BYTES * texture.width * texture.height for texture in made.textures_registry
        )
        self._kept.append(made.mesh_registry)
        if compiled.nmesh:
            self._append_meshes(compiled, made)
        self.version += 1

    def _append_meshes(self, compiled: Any, made: Any) -> None:
        sizes, without = self._sizes, compiled.mesh_texcoordadr < 0
        rows = {
            "mesh_bvh_id": made.mesh_bvh_id.numpy(),
            "mesh_bounds_size": made.mesh_bounds_size.numpy(),
            "mesh_faceadr": compiled.mesh_faceadr + sizes["face"],
            "mesh_normaladr": compiled.mesh_normaladr + sizes["normal"],
            "mesh_texcoord_offsets": np.where(
                without, NONE, compiled.mesh_texcoordadr + sizes["texcoord"]
            ).astype(np.int32),
            "mesh_facenormal": compiled.mesh_facenormal,
            "mesh_facetexcoord": compiled.mesh_facetexcoord,
            "mesh_normal": compiled.mesh_normal,
            "mesh_texcoord": compiled.mesh_texcoord.reshape(-1, 2),
        }
        for name, values in rows.items():
            self._host[name].append(np.array(values))
        sizes["face"] += compiled.nmeshface
        sizes["normal"] += compiled.nmeshnormal
        sizes["texcoord"] += compiled.nmeshtexcoord
        turn = np.zeros((compiled.nmesh, 9))
        for mesh in range(compiled.nmesh):
            mujoco.mju_quat2Mat(turn[mesh], compiled.mesh_quat[mesh])
        self.offset_pos = np.concatenate([self.offset_pos, compiled.mesh_pos.astype(np.float32)])
        moved = turn.reshape(-1, 3, 3).astype(np.float32)
        self.offset_mat = np.concatenate([self.offset_mat, moved])

    def device_arrays(self) -> Dict[str, Any]:
        """Return new arrays on the device, by the name of the field that holds them."""
        made = {
            name: warp.array(np.concatenate(parts) if parts else np.zeros(shape), dtype=kind)
            for (name, (kind, shape)), parts in zip(_COLUMNS.items(), self._host.values())
        }
        made["textures"] = warp.array(self._texture_objects, dtype=warp.Texture2D)
        made["textures_registry"] = list(self._texture_objects)
        return made


_COLUMNS = {
    "mesh_bvh_id": (warp.uint64, (0,)),
    "mesh_bounds_size": (warp.vec3, (0, 3)),
    "mesh_faceadr": (int, (0,)),
    "mesh_normaladr": (int, (0,)),
    "mesh_texcoord_offsets": (int, (0,)),
    "mesh_facenormal": (warp.vec3i, (0, 3)),
    "mesh_facetexcoord": (warp.vec3i, (0, 3)),
    "mesh_normal": (warp.vec3, (0, 3)),
    "mesh_texcoord": (warp.vec2, (0, 2)),
}
"""Type and empty shape of each array of meshes."""


class _ModelAssets:
    """The assets of one model, and hashes of their parts."""

    def __init__(self, assets: Mapping[str, Any]) -> None:
        self.assets = assets
        self._mesh_hashes: Dict[int, bytes] = {}
        self.texture_hashes = [
            _hash([self._texture_head(number), texture_bytes(assets, number)])
            for number in range(len(assets["tex_adr"]))
        ]
        skies = np.flatnonzero(assets["tex_type"] == int(mujoco.mjtTexture.mjTEXTURE_SKYBOX))
        self.sky = int(skies[0]) if len(skies) else NONE
        """Number of the sky box among the textures."""

    def _texture_head(self, number: int) -> bytes:
        names = ("tex_type", "tex_height", "tex_width", "tex_nchannel")
        return repr([int(self.assets[name][number]) for name in names]).encode()

    def mesh_hash(self, mesh: int) -> bytes:
        """Return the hash of a mesh's arrays."""
        if mesh not in self._mesh_hashes:
            parts = mesh_parts(self.assets, mesh)
            heads = [b"%d " % len(part) for part in parts.values()]
            self._mesh_hashes[mesh] = _hash([*heads, *(part.tobytes() for part in parts.values())])
        return self._mesh_hashes[mesh]


def _hash(parts: Sequence[bytes]) -> bytes:
    found = hashlib.blake2b(digest_size=16)
    for part in parts:
        found.update(part)
    return found.digest()
