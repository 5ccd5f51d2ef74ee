"""Models that are compiled in the drawing process: meshes and textures, and slots for geoms.

Models compiled by one MuJoCo version do not load in another. Meshes and textures do: they are
compiled here from the arrays of the worker's compiled model.
"""

from typing import TYPE_CHECKING, Any, Mapping, Sequence, Tuple

if TYPE_CHECKING:
    import numpy as np
else:
    from proctor_worker.lazy_numpy import np

import mujoco

from proctor_worker.drawing import scene
from proctor_worker.drawing.scene import SceneLayout
from proctor_worker.drawing.slots import Slots, slot_kinds

UNCOLOURED = (0.5, 0.5, 0.5, 1.0)
"""A geom of this colour gets its material's colour, so every material has it too."""
_NEAR_M, _FAR_M = 0.01, 1000.0
"""Clipping distances. The same for all models, because each pair is compiled into a kernel."""
_TETRAHEDRON = (0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1)
_TETRAHEDRON_FACES = (0, 2, 1, 0, 1, 3, 0, 3, 2, 1, 2, 3)

Part = Tuple[Mapping[str, Any], int]
"""Assets of a model, and the number of a mesh or of a texture in them."""


def compile_assets(meshes: Sequence[Part], textures: Sequence[Part]) -> Any:
    """Return an ``MjModel`` that has these meshes and textures, in this order."""
    spec = mujoco.MjSpec()
    for number, (assets, mesh) in enumerate(meshes):
        _add_mesh(spec, "mesh%d" % number, assets, mesh)
    for number, (assets, texture) in enumerate(textures):
        _add_texture(spec, "texture%d" % number, assets, texture)
    spec.worldbody.add_geom(type=scene.SPHERE, size=[1, 0, 0])
    spec.worldbody.add_camera()
    return spec.compile()


def compile_slots(slots: Slots, layout: SceneLayout, *, has_sky: bool) -> Any:
    """Return an ``MjModel`` with ``slots``, a material for each, and the layout's lights.

    The slots lie in a row, so a tree of bounding boxes has neighbours next to each other. In a
    scene too, geoms that follow one another are mostly parts of one thing.
    """
    spec = mujoco.MjSpec()
    spec.visual.headlight.active = 0  # it is one of the layout's lights
    spec.visual.map.znear, spec.visual.map.zfar = _NEAR_M, _FAR_M
    spec.stat.extent, spec.stat.center = 1.0, [0.0, 0.0, 0.0]
    if has_sky:
        sky = spec.add_texture(
            type=mujoco.mjtTexture.mjTEXTURE_SKYBOX, height=6, width=1, nchannel=3
        )
        sky.data = bytes(18)
    mesh = spec.add_mesh(name="tetrahedron")
    mesh.uservert, mesh.userface = _TETRAHEDRON, _TETRAHEDRON_FACES
    for number, kind in enumerate(slot_kinds(slots)):
        material = "material%d" % number
        spec.add_material(name=material, rgba=UNCOLOURED)
        of_kind = {"meshname": "tetrahedron"} if kind == scene.MESH else {"size": [0.1, 0.1, 0.1]}
        spec.worldbody.add_geom(
            type=int(kind),
            pos=[float(number), 0, 0],
            material=material,
            contype=0,
            conaffinity=0,
            mass=0.0,
            group=0,
            **of_kind,
        )
    for light in layout.lights:
        _add_light(spec, light)
    spec.worldbody.add_camera(fovy=layout.fovy)
    return spec.compile()


def _add_texture(spec: Any, name: str, assets: Mapping[str, Any], number: int) -> None:
    height, width, channels = (
        int(assets["tex_" + part][number]) for part in ("height", "width", "nchannel")
    )
    kind = int(assets["tex_type"][number])
    texture = spec.add_texture(name=name, type=kind, height=height, width=width, nchannel=channels)
    texture.data = texture_bytes(assets, number)


def texture_bytes(assets: Mapping[str, Any], number: int) -> bytes:
    """Return the pixels of a texture."""
    begin = int(assets["tex_adr"][number])
    size = np.prod([int(assets["tex_" + part][number]) for part in ("height", "width", "nchannel")])
    pixels: bytes = assets["tex_data"][begin : begin + int(size)].tobytes()
    return pixels


def mesh_parts(assets: Mapping[str, Any], number: int) -> Mapping[str, Any]:
    """Return the arrays of a mesh, flat, by name."""
    return {
        name: _part(assets, number, field, name)
        for field, name in (
            *(("vert", "vert"), ("face", "face"), ("normal", "normal")),
            *(("face", "facenormal"), ("face", "facetexcoord"), ("texcoord", "texcoord")),
        )
    }


def _part(assets: Mapping[str, Any], mesh: int, field: str, name: str) -> Any:
    """Return a mesh's rows of array ``mesh_NAME``, which ``field``'s addresses describe, flat."""
    begin, count = (int(assets["mesh_%s%s" % (field, end)][mesh]) for end in ("adr", "num"))
    return assets["mesh_" + name][begin : begin + count].ravel() if begin >= 0 else np.zeros(0)


def _add_mesh(spec: Any, name: str, assets: Mapping[str, Any], number: int) -> None:
    parts = mesh_parts(assets, number)
    mesh = spec.add_mesh(name=name)
    mesh.inertia = mujoco.mjtMeshInertia.mjMESH_INERTIA_SHELL  # flat meshes have no volume
    mesh.uservert, mesh.userface = parts["vert"], parts["face"]
    mesh.usernormal = parts["normal"]
    if hasattr(mesh, "userfacenormal"):
        mesh.userfacenormal = parts["facenormal"]
    if len(parts["texcoord"]):
        mesh.usertexcoord, mesh.userfacetexcoord = parts["texcoord"], parts["facetexcoord"]


def _add_light(spec: Any, light: Any) -> None:
    kinds, directional = mujoco.mjtLightType, bool(light[scene.DIRECTIONAL])
    spec.worldbody.add_light(
        type=kinds.mjLIGHT_DIRECTIONAL if directional else kinds.mjLIGHT_SPOT,
        attenuation=(1, 0, 0) if directional else light[scene.ATTENUATION],
        cutoff=float(light[scene.CUTOFF]),
        exponent=float(light[scene.EXPONENT]),
    )
