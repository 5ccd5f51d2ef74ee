"""Kernels that bring uploaded rows into the arrays of mujoco-warp, and pixels out of them."""

import warp

from proctor_worker.drawing import scene

# A world's row: its layout's number in the tables, then a request's numbers.
CAMERA = 1
LIGHTS = CAMERA + scene.CAMERA_FLOATS
# Columns of the table of slots: which geom of the scene lies in the slot, and what it looks like.
GEOM, MESH_NUMBER, TEXTURE, REPEAT_X, REPEAT_Y, UNIFORM = range(6)
OFFSET_POS, OFFSET_MAT = 6, 9
SLOT_FLOATS = 18
# Columns of the table of layouts: the sky box's texture and its width, whether the picture is
# rotated, then whether each light casts shadows.
SKY, SKY_WIDTH, ROTATED, CASTS = range(4)

_POS, _MAT, _RGBA = scene.POS.start, scene.MAT.start, scene.RGBA.start
_CAPSULE, _CYLINDER = scene.CAPSULE, scene.CYLINDER
_EMISSION = scene.EMISSION
_GEOM_FLOATS, _LIGHT_FLOATS = scene.GEOM_FLOATS, scene.LIGHT_FLOATS

RGB_ROLE = 1
"""Column of ``mat_texid`` that has a material's colour texture (``mjTEXROLE_RGB``)."""


@warp.func  # type: ignore[untyped-decorator, unused-ignore]
def _vector(rows: warp.array2d[float], world: int, at: int) -> warp.vec3:
    return warp.vec3(rows[world, at], rows[world, at + 1], rows[world, at + 2])


@warp.func  # type: ignore[untyped-decorator, unused-ignore]
def _matrix(rows: warp.array2d[float], world: int, at: int) -> warp.mat33:
    return warp.mat33(
        rows[world, at],
        rows[world, at + 1],
        rows[world, at + 2],
        rows[world, at + 3],
        rows[world, at + 4],
        rows[world, at + 5],
        rows[world, at + 6],
        rows[world, at + 7],
        rows[world, at + 8],
    )


@warp.func  # type: ignore[untyped-decorator, unused-ignore]
def _offset_matrix(slots: warp.array3d[float], layout: int, slot: int) -> warp.mat33:
    return warp.mat33(
        slots[layout, slot, OFFSET_MAT],
        slots[layout, slot, OFFSET_MAT + 1],
        slots[layout, slot, OFFSET_MAT + 2],
        slots[layout, slot, OFFSET_MAT + 3],
        slots[layout, slot, OFFSET_MAT + 4],
        slots[layout, slot, OFFSET_MAT + 5],
        slots[layout, slot, OFFSET_MAT + 6],
        slots[layout, slot, OFFSET_MAT + 7],
        slots[layout, slot, OFFSET_MAT + 8],
    )


@warp.kernel  # type: ignore[untyped-decorator, unused-ignore]
def place_geoms(
    rows: warp.array2d[float],
    slots: warp.array3d[float],
    first_geom: int,
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
    """Write the slots of each world: poses of compiled meshes, sizes, colours, materials.

    An empty slot has no size and no opacity.
    """
    world, slot = warp.tid()
    layout = int(rows[world, 0])
    geom = int(slots[layout, slot, GEOM])
    turn = warp.mat33(0.0)
    place = warp.vec3(0.0)
    size = warp.vec3(0.0)
    rgba = warp.vec4(0.0)
    shine = warp.vec3(0.0)
    if geom >= 0:
        at = first_geom + geom * _GEOM_FLOATS
        turn = _matrix(rows, world, at + _MAT)
        place = _vector(rows, world, at + _POS)
        size = _vector(rows, world, at)
        rgba = warp.vec4(
            rows[world, at + _RGBA],
            rows[world, at + _RGBA + 1],
            rows[world, at + _RGBA + 2],
            rows[world, at + _RGBA + 3],
        )
        shine = _vector(rows, world, at + _EMISSION)
    offset = warp.vec3(
        slots[layout, slot, OFFSET_POS],
        slots[layout, slot, OFFSET_POS + 1],
        slots[layout, slot, OFFSET_POS + 2],
    )
    geom_xpos[world, slot] = place + turn * offset
    geom_xmat[world, slot] = turn * _offset_matrix(slots, layout, slot)
    if kinds[slot] == _CAPSULE or kinds[slot] == _CYLINDER:
        size = warp.vec3(size[0], size[2], 0.0)  # a scene has (radius, radius, half length)
    geom_size[world, slot] = size
    geom_rgba[world, slot] = rgba
    geom_dataid[world, slot] = int(slots[layout, slot, MESH_NUMBER])
    mat_texid[world, slot, RGB_ROLE] = int(slots[layout, slot, TEXTURE])
    mat_texrepeat[world, slot] = warp.vec2(
        slots[layout, slot, REPEAT_X], slots[layout, slot, REPEAT_Y]
    )
    mat_texuniform[world, slot] = slots[layout, slot, UNIFORM] != 0.0
    mat_emission[world, slot] = shine[0]
    mat_specular[world, slot] = shine[1]
    mat_shininess[world, slot] = shine[2]


@warp.kernel  # type: ignore[untyped-decorator, unused-ignore]
def place_lights(
    rows: warp.array2d[float],
    layouts: warp.array2d[float],
    light_xpos: warp.array2d[warp.vec3],
    light_xdir: warp.array2d[warp.vec3],
    light_ambient: warp.array2d[warp.vec3],
    light_diffuse: warp.array2d[warp.vec3],
    light_specular: warp.array2d[warp.vec3],
    light_castshadow: warp.array2d[bool],
) -> None:
    """Write the lights of each world."""
    world, light = warp.tid()
    at = LIGHTS + light * _LIGHT_FLOATS
    light_xpos[world, light] = _vector(rows, world, at)
    light_xdir[world, light] = _vector(rows, world, at + 3)
    light_ambient[world, light] = _vector(rows, world, at + 6)
    light_diffuse[world, light] = _vector(rows, world, at + 9)
    light_specular[world, light] = _vector(rows, world, at + 12)
    light_castshadow[world, light] = layouts[int(rows[world, 0]), CASTS + light] != 0.0


@warp.kernel  # type: ignore[untyped-decorator, unused-ignore]
def place_camera(
    rows: warp.array2d[float],
    layouts: warp.array2d[float],
    cam_xpos: warp.array2d[warp.vec3],
    cam_xmat: warp.array2d[warp.mat33],
    skybox_tex_id: warp.array[int],
    skybox_face_width: warp.array[int],
) -> None:
    """Write the camera and the sky box of each world."""
    world = warp.tid()
    layout = int(rows[world, 0])
    cam_xpos[world, 0] = _vector(rows, world, CAMERA)
    cam_xmat[world, 0] = _matrix(rows, world, CAMERA + 3)
    skybox_tex_id[world] = int(layouts[layout, SKY])
    skybox_face_width[world] = int(layouts[layout, SKY_WIDTH])


@warp.kernel  # type: ignore[untyped-decorator, unused-ignore]
def unpack_rgb(
    rows: warp.array2d[float],
    layouts: warp.array2d[float],
    packed: warp.array2d[warp.uint32],
    pixels: int,
    rgb: warp.array2d[warp.uint8],
) -> None:
    """Write the bytes of packed ARGB pixels as RGB triples, in reverse if the picture is rotated.

    A picture that is rotated by 180 degrees has its pixels in reverse order.
    """
    world, pixel = warp.tid()
    source = pixel
    if layouts[int(rows[world, 0]), ROTATED] != 0.0:
        source = pixels - 1 - pixel
    value = packed[world, source]
    mask = warp.uint32(255)
    rgb[world, 3 * pixel + 0] = warp.uint8((value >> warp.uint32(16)) & mask)
    rgb[world, 3 * pixel + 1] = warp.uint8((value >> warp.uint32(8)) & mask)
    rgb[world, 3 * pixel + 2] = warp.uint8(value & mask)
