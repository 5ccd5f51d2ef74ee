"""A model whose geoms are those of a scene, all fixed to the world; their poses are set later.

Models compiled by one MuJoCo version do not load in another. Meshes and textures do: the model is
compiled here from the arrays of the worker's compiled model.
"""

from typing import TYPE_CHECKING, Any, Dict, Mapping

if TYPE_CHECKING:
    import numpy as np
else:
    from proctor_worker.lazy_numpy import np

from proctor_worker.drawing import scene
from proctor_worker.drawing.scene import DrawRequest

RGB_ROLE = 1
"""Column of ``mat_texid`` that has a material's colour texture (``mjTEXROLE_RGB``)."""
UNCOLOURED = (0.5, 0.5, 0.5, 1.0)
"""A geom of this colour gets its material's colour, so every material has it too."""
_NEAR_M, _FAR_M = 0.01, 1000.0
"""Clipping distances. The same for all models, because each pair is compiled into a kernel."""


def compile_flat_model(assets: Mapping[str, Any], request: DrawRequest) -> Any:
    """Return the ``MjModel`` of ``request``: one material per geom, poses as in the request."""
    import mujoco

    spec = mujoco.MjSpec()
    spec.visual.headlight.active = 0  # it is one of the request's lights
    spec.visual.map.znear, spec.visual.map.zfar = _NEAR_M, _FAR_M
    spec.stat.extent, spec.stat.center = 1.0, [0.0, 0.0, 0.0]
    for number in range(len(assets["tex_adr"])):
        _add_texture(spec, assets, number)
    meshes = request.geom_ints[request.geom_ints[:, scene.TYPE] == scene.MESH, scene.DATAID] // 2
    for number in np.unique(meshes):
        _add_mesh(spec, assets, int(number))
    for number, (ints, floats) in enumerate(zip(request.geom_ints, request.geom_floats)):
        _add_geom(spec, number, ints, floats)
    for ints, floats in zip(request.light_ints, request.light_floats):
        _add_light(spec, ints, floats)
    camera = request.camera
    spec.worldbody.add_camera(
        name="camera",
        pos=camera[scene.CAMERA_POS],
        quat=_quaternion(camera[scene.CAMERA_MAT]),
        fovy=float(camera[scene.FOVY]),
    )
    return spec.compile()


def geom_sizes(kinds: "np.ndarray[Any, Any]", sizes: "np.ndarray[Any, Any]") -> Any:
    """Return sizes of a scene's geoms ([..., G, 3]) as a model has them.

    A scene has (radius, radius, half length) for capsules and cylinders, a model (radius, half
    length).
    """
    long = (kinds == scene.CAPSULE) | (kinds == scene.CYLINDER)
    converted = sizes.copy()
    converted[..., long, 1] = sizes[..., long, 2]
    converted[..., long, 2] = 0
    return converted


def _add_texture(spec: Any, assets: Mapping[str, Any], number: int) -> None:
    shape = [int(assets[f"tex_{name}"][number]) for name in ("height", "width", "nchannel")]
    begin = int(assets["tex_adr"][number])
    kind = int(assets["tex_type"][number])
    texture = spec.add_texture(
        name="texture%d" % number, type=kind, height=shape[0], width=shape[1], nchannel=shape[2]
    )
    texture.data = assets["tex_data"][begin : begin + shape[0] * shape[1] * shape[2]].tobytes()


def _add_mesh(spec: Any, assets: Mapping[str, Any], number: int) -> None:
    import mujoco

    parts = {
        name: _part(assets, number, field, name)
        for field, name in (
            *(("vert", "vert"), ("face", "face"), ("normal", "normal")),
            *(("face", "facenormal"), ("face", "facetexcoord"), ("texcoord", "texcoord")),
        )
    }
    mesh = spec.add_mesh(name="mesh%d" % number)
    mesh.inertia = mujoco.mjtMeshInertia.mjMESH_INERTIA_SHELL  # flat meshes have no volume
    mesh.uservert, mesh.userface = parts["vert"], parts["face"]
    mesh.usernormal = parts["normal"]
    if hasattr(mesh, "userfacenormal"):
        mesh.userfacenormal = parts["facenormal"]
    if len(parts["texcoord"]):
        mesh.usertexcoord, mesh.userfacetexcoord = parts["texcoord"], parts["facetexcoord"]


def _part(assets: Mapping[str, Any], mesh: int, field: str, name: str) -> Any:
    """Return a mesh's rows of array ``mesh_NAME``, which ``field``'s addresses describe, flat."""
    begin, count = (int(assets["mesh_%s%s" % (field, end)][mesh]) for end in ("adr", "num"))
    return assets["mesh_" + name][begin : begin + count].ravel() if begin >= 0 else np.zeros(0)


def _add_geom(spec: Any, number: int, ints: Any, floats: Any) -> None:
    name, kind = "material%d" % number, int(ints[scene.TYPE])
    spec.add_material(name=name, rgba=UNCOLOURED)
    shape: Dict[str, Any] = {"size": geom_sizes(ints[:1], floats[None, scene.SIZE])[0]}
    if kind == scene.MESH:
        shape = {"meshname": "mesh%d" % (ints[scene.DATAID] // 2)}
    spec.worldbody.add_geom(
        type=kind,
        pos=floats[scene.POS],
        quat=_quaternion(floats[scene.MAT]),
        rgba=floats[scene.RGBA],
        material=name,
        contype=0,
        conaffinity=0,
        mass=0.0,
        group=0,
        **shape,
    )


def _add_light(spec: Any, ints: Any, floats: Any) -> None:
    import mujoco

    kinds, directional = mujoco.mjtLightType, bool(ints[scene.DIRECTIONAL])
    spec.worldbody.add_light(
        pos=floats[scene.LIGHT_POS],
        dir=floats[scene.LIGHT_DIR],
        type=kinds.mjLIGHT_DIRECTIONAL if directional else kinds.mjLIGHT_SPOT,
        attenuation=(1, 0, 0) if directional else floats[scene.ATTENUATION],
        cutoff=float(floats[scene.CUTOFF]),
        exponent=float(floats[scene.EXPONENT]),
    )


def _quaternion(matrix: Any) -> Any:
    import mujoco

    found = np.zeros(4)
    mujoco.mju_mat2Quat(found, np.asarray(matrix, np.float64).ravel())
    return found
