"""Records of the drawing process: the assets of a model, a scene's layout, and its numbers.

They hold what MuJoCo's abstract scene (``MjvScene``) holds: a list of visible geoms with poses and
colours, lights, and a camera. Sites, moved bodies and scene edits are thus included. The layout
seldom changes and is sent once. A picture's request has the layout's number and the numbers that
change from step to step.
"""

import struct
from typing import TYPE_CHECKING, Any, Dict, NamedTuple, Tuple

if TYPE_CHECKING:
    import numpy as np
else:
    from proctor_worker.lazy_numpy import np

PLANE, HFIELD, SPHERE, CAPSULE, ELLIPSOID, CYLINDER, BOX, MESH = range(8)
"""Values of ``mjtGeom``."""
DRAWN = (PLANE, SPHERE, CAPSULE, ELLIPSOID, CYLINDER, BOX, MESH)

# Columns of a layout's geoms.
TYPE, DATAID, MATID = 0, 1, 2
GEOM_INTS = 3
# Columns of a layout's lights.
DIRECTIONAL, CASTSHADOW, ATTENUATION, CUTOFF, EXPONENT = 0, 1, slice(2, 5), 5, 6
LAYOUT_LIGHT_FLOATS = 7

# A request's numbers, float32: the camera, then the lights, then the geoms.
CAMERA_POS, CAMERA_MAT = slice(0, 3), slice(3, 12)
CAMERA_FLOATS = 12
# Columns of a light: position, direction, ambient, diffuse and specular colour.
LIGHT_FLOATS = 15
# Columns of a geom, in the order of MuJoCo's ``mjvGeom``.
SIZE, POS, MAT, RGBA = slice(0, 3), slice(3, 6), slice(6, 15), slice(15, 19)
EMISSION, SHININESS = 19, 21
GEOM_FLOATS = 23

DRAW = struct.Struct("<II")
"""Head of a request: number of the scene's layout, and the place of the picture."""
DRAWN_AT = struct.Struct("<I")
"""Reply to a request: the place of the picture."""

ASSETS = (
    *("mat_texid", "mat_texrepeat", "mat_texuniform"),
    *("tex_type", "tex_height", "tex_width", "tex_nchannel", "tex_adr", "tex_data"),
    *("mesh_vertadr", "mesh_vertnum", "mesh_vert", "mesh_faceadr", "mesh_facenum", "mesh_face"),
    *("mesh_normaladr", "mesh_normalnum", "mesh_normal", "mesh_facenormal"),
    *("mesh_texcoordadr", "mesh_texcoordnum", "mesh_texcoord", "mesh_facetexcoord"),
)
"""Fields of an ``MjModel`` that a scene's assets consist of."""


class Quality(NamedTuple):
    """Size of a picture in pixels, samples per pixel and axis, and whether there are shadows."""

    height: int
    width: int
    samples: int
    shadows: bool


class SceneLayout(NamedTuple):
    """What pictures of one camera in one model have in common."""

    assets: str
    """Hash of the assets, as ``assets_key`` of Proctor's side gives it."""
    quality: Quality
    geom_bytes: bytes
    light_bytes: bytes
    fovy: float
    """Vertical field of view in degrees."""
    rotated: bool = False
    """Whether the picture is rotated by 180 degrees."""

    @property
    def geoms(self) -> "np.ndarray[Any, Any]":
        """Type, dataid and matid of each geom, int32 [G, 3]."""
        return np.frombuffer(self.geom_bytes, np.int32).reshape(-1, GEOM_INTS)

    @property
    def lights(self) -> "np.ndarray[Any, Any]":
        """What a light's motion does not change, float32 [L, 7]."""
        return np.frombuffer(self.light_bytes, np.float32).reshape(-1, LAYOUT_LIGHT_FLOATS)

    @property
    def view(self) -> Tuple[Any, ...]:
        """Size, lights and lens, which must be equal for pictures of one launch."""
        lights = self.lights[:, [DIRECTIONAL, *range(ATTENUATION.start, LAYOUT_LIGHT_FLOATS)]]
        return (self.quality, lights.tobytes(), self.fovy)

    @property
    def n_numbers(self) -> int:
        """Length of a request's numbers."""
        return request_floats(len(self.geoms), len(self.lights))


class DrawRequest(NamedTuple):
    """One picture: its scene's layout, and the numbers of camera, lights and geoms."""

    layout: SceneLayout
    numbers: bytes
    """float32 [n_numbers]."""


def request_floats(n_geoms: int, n_lights: int) -> int:
    """Return the length of a request's numbers."""
    return CAMERA_FLOATS + n_lights * LIGHT_FLOATS + n_geoms * GEOM_FLOATS


def layout_frame(layout: SceneLayout) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """Return header and arrays of the frame for ``layout``."""
    header = {
        "op": "scene",
        "assets": layout.assets,
        "quality": list(layout.quality),
        "fovy": layout.fovy,
        "rotated": layout.rotated,
    }
    return header, {"geoms": layout.geoms, "lights": layout.lights}


def layout_of_frame(header: Dict[str, Any], arrays: Dict[str, Any]) -> SceneLayout:
    """Return the layout of a frame that ``layout_frame`` made."""
    height, width, samples, shadows = header["quality"]
    return SceneLayout(
        assets=header["assets"],
        quality=Quality(int(height), int(width), int(samples), bool(shadows)),
        geom_bytes=arrays["geoms"].tobytes(),
        light_bytes=arrays["lights"].tobytes(),
        fovy=float(header["fovy"]),
        rotated=bool(header["rotated"]),
    )
