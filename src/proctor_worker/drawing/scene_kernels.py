"""Kernels that bring uploaded rows into the arrays of mujoco-warp, and pixels out of them."""

import warp

from proctor_worker.drawing import scene

# Columns of a slot's row: those of ``geom_floats``, then the following.
MESH_NUMBER, TEXTURE, REPEAT_X, REPEAT_Y, UNIFORM = range(scene.GEOM_FLOATS, scene.GEOM_FLOATS + 5)
OFFSET_POS, OFFSET_MAT = scene.GEOM_FLOATS + 5, scene.GEOM_FLOATS + 8
SLOT_FLOATS = scene.GEOM_FLOATS + 17
# Columns of a light's row: those of ``light_floats``, then whether it casts shadows.
CASTS = scene.LIGHT_FLOATS
LIGHT_ROW_FLOATS = scene.LIGHT_FLOATS + 1
# Columns of a camera's row: position, rotation, then the sky box's texture and its width.
SKY, SKY_WIDTH = scene.FOVY, scene.FOVY + 1
CAMERA_FLOATS = scene.FOVY + 2

_POS, _MAT, _RGBA = scene.POS.start, scene.MAT.start, scene.RGBA.start
_CAPSULE, _CYLINDER = scene.CAPSULE, scene.CYLINDER
_EMISSION, _SPECULAR, _SHININESS = scene.EMISSION, scene.SPECULAR, scene.SHININESS
_LIGHT_DIR, _AMBIENT = scene.LIGHT_DIR.start, scene.AMBIENT.start
_DIFFUSE, _LIGHT_SPECULAR = scene.DIFFUSE.start, scene.LIGHT_SPECULAR.start

RGB_ROLE = 1
"""Column of ``mat_texid`` that has a material's colour texture (``mjTEXROLE_RGB``)."""


@warp.func  # type: ignore[untyped-decorator, unused-ignore]
def _vector(rows: warp.array3d[float], world: int, row: int, column: int) -> warp.vec3:
    return warp.vec3(
        rows[world, row, column], rows[world, row, column + 1], rows[world, row, column + 2]
    )


@warp.func  # type: ignore[untyped-decorator, unused-ignore]
def _matrix(rows: warp.array3d[float], world: int, row: int, column: int) -> warp.mat33:
    return warp.mat33(
        rows[world, row, column],
        rows[world, row, column + 1],
        rows[world, row, column + 2],
        rows[world, row, column + 3],
        rows[world, row, column + 4],
        rows[world, row, column + 5],
        rows[world, row, column + 6],
        rows[world, row, column + 7],
        rows[world, row, column + 8],
    )


@warp.kernel  # type: ignore[untyped-decorator, unused-ignore]
def place_geoms(
    rows: warp.array3d[float],
    kinds: warp.array[int],
    geom_xpos: warp.array2d[warp.vec3],
    geom_xmat: warp.array2d[warp.mat33],
    geom_size: warp.array2d[warp.vec3],
    geom_rgba: warp.array2d[warp.vec4],
    geom_dataid: warp.array2d[int],
    mat_texid: warp.array3d[int],
    mat_texrepeat: warp.array2d[warp.vec2],
    mat_texuniform: warp.array2d[bool],
    mat_emission: warp.array2d[float],
    mat_specular: warp.array2d[float],
    mat_shininess: warp.array2d[float],
) -> None:
    """Write the slots of each world: poses of compiled meshes, sizes, colours, materials."""
    world, slot = warp.tid()
    turn = _matrix(rows, world, slot, _MAT)
    place = _vector(rows, world, slot, _POS)
    geom_xpos[world, slot] = place + turn * _vector(rows, world, slot, OFFSET_POS)
    geom_xmat[world, slot] = turn * _matrix(rows, world, slot, OFFSET_MAT)
    size = _vector(rows, world, slot, 0)
    if kinds[slot] == _CAPSULE or kinds[slot] == _CYLINDER:
        size = warp.vec3(size[0], size[2], 0.0)  # a scene has (radius, radius, half length)
    geom_size[world, slot] = size
    geom_rgba[world, slot] = warp.vec4(
        rows[world, slot, _RGBA],
        rows[world, slot, _RGBA + 1],
        rows[world, slot, _RGBA + 2],
        rows[world, slot, _RGBA + 3],
    )
    geom_dataid[world, slot] = int(rows[world, slot, MESH_NUMBER])
    mat_texid[world, slot, RGB_ROLE] = int(rows[world, slot, TEXTURE])
    mat_texrepeat[world, slot] = warp.vec2(rows[world, slot, REPEAT_X], rows[world, slot, REPEAT_Y])
    mat_texuniform[world, slot] = rows[world, slot, UNIFORM] != 0.0
    mat_emission[world, slot] = rows[world, slot, _EMISSION]
    mat_specular[world, slot] = rows[world, slot, _SPECULAR]
    mat_shininess[world, slot] = rows[world, slot, _SHININESS]


@warp.kernel  # type: ignore[untyped-decorator, unused-ignore]
def place_lights(
    rows: warp.array3d[float],
    light_xpos: warp.array2d[warp.vec3],
    light_xdir: warp.array2d[warp.vec3],
    light_ambient: warp.array2d[warp.vec3],
    light_diffuse: warp.array2d[warp.vec3],
    light_specular: warp.array2d[warp.vec3],
    light_castshadow: warp.array2d[bool],
) -> None:
    """Write the lights of each world."""
    world, light = warp.tid()
    light_xpos[world, light] = _vector(rows, world, light, 0)
    light_xdir[world, light] = _vector(rows, world, light, _LIGHT_DIR)
    light_ambient[world, light] = _vector(rows, world, light, _AMBIENT)
    light_diffuse[world, light] = _vector(rows, world, light, _DIFFUSE)
    light_specular[world, light] = _vector(rows, world, light, _LIGHT_SPECULAR)
    light_castshadow[world, light] = rows[world, light, CASTS] != 0.0


@warp.kernel  # type: ignore[untyped-decorator, unused-ignore]
def place_camera(
    rows: warp.array3d[float],
    cam_xpos: warp.array2d[warp.vec3],
    cam_xmat: warp.array2d[warp.mat33],
    skybox_tex_id: warp.array[int],
    skybox_face_width: warp.array[int],
) -> None:
    """Write the camera and the sky box of each world."""
    world = warp.tid()
    cam_xpos[world, 0] = _vector(rows, world, 0, 0)
    cam_xmat[world, 0] = _matrix(rows, world, 0, 3)
    skybox_tex_id[world] = int(rows[world, 0, SKY])
    skybox_face_width[world] = int(rows[world, 0, SKY_WIDTH])


@warp.kernel  # type: ignore[untyped-decorator, unused-ignore]
def unpack_rgb(packed: warp.array2d[warp.uint32], rgb: warp.array2d[warp.uint8]) -> None:
    """Write the bytes of packed ARGB pixels as RGB triples."""
    world, pixel = warp.tid()
    value = packed[world, pixel]
    mask = warp.uint32(255)
    rgb[world, 3 * pixel + 0] = warp.uint8((value >> warp.uint32(16)) & mask)
    rgb[world, 3 * pixel + 1] = warp.uint8((value >> warp.uint32(8)) & mask)
    rgb[world, 3 * pixel + 2] = warp.uint8(value & mask)
