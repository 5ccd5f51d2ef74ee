"""Records of the drawing process: the assets of a model, and one picture's request.

A request holds what MuJoCo's abstract scene (``MjvScene``) holds: a list of visible geoms with
poses and colours, lights, and a camera. Sites, moved bodies and scene edits are thus included.
"""

from typing import TYPE_CHECKING, Any, Dict, NamedTuple, Tuple

if TYPE_CHECKING:
    import numpy as np

PLANE, HFIELD, SPHERE, CAPSULE, ELLIPSOID, CYLINDER, BOX, MESH = range(8)
"""Values of ``mjtGeom``."""
DRAWN = (PLANE, SPHERE, CAPSULE, ELLIPSOID, CYLINDER, BOX, MESH)

# Columns of ``geom_ints`` and ``geom_floats``, in the order of MuJoCo's ``mjvGeom``.
TYPE, DATAID, MATID = 0, 1, 5
GEOM_INTS = 8
SIZE, POS, MAT, RGBA = slice(0, 3), slice(3, 6), slice(6, 15), slice(15, 19)
EMISSION, SPECULAR, SHININESS = 19, 20, 21
GEOM_FLOATS = 23

# Columns of ``light_ints`` and ``light_floats``.
DIRECTIONAL, CASTSHADOW = 0, 1
LIGHT_POS, LIGHT_DIR = slice(0, 3), slice(3, 6)
AMBIENT, DIFFUSE, LIGHT_SPECULAR = slice(6, 9), slice(9, 12), slice(12, 15)
ATTENUATION, CUTOFF, EXPONENT, LIGHT_SHAPE = slice(15, 18), 18, 19, slice(15, 20)
LIGHT_FLOATS = 20

# Columns of ``camera``: position, rotation matrix, vertical field of view in degrees.
CAMERA_POS, CAMERA_MAT, FOVY = slice(0, 3), slice(3, 12), 12

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


class DrawRequest(NamedTuple):
    """One picture: its assets' key, quality and scene."""

    assets: str
    """Hash of the assets, as ``assets_key`` of Proctor's side gives it."""
    quality: Quality
    geom_ints: "np.ndarray[Any, Any]"  # int32 [G, 8]
    geom_floats: "np.ndarray[Any, Any]"  # float32 [G, 23]
    light_ints: "np.ndarray[Any, Any]"  # int32 [L, 2]
    light_floats: "np.ndarray[Any, Any]"  # float32 [L, 20]
    camera: "np.ndarray[Any, Any]"  # float32 [13]

    def view(self) -> Tuple[Any, ...]:
        """Return size, lights and lens, which must be equal for pictures of one launch."""
        return (
            self.quality,
            self.light_ints[:, DIRECTIONAL].tobytes(),
            self.light_floats[:, LIGHT_SHAPE].tobytes(),
            float(self.camera[FOVY]),
        )


def request_frame(request: DrawRequest) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """Return header and arrays of the frame for ``request``."""
    header = {"op": "draw", "assets": request.assets, "quality": list(request.quality)}
    names = DrawRequest._fields[2:]
    return header, {name: getattr(request, name) for name in names}


def request_of_frame(header: Dict[str, Any], arrays: Dict[str, Any]) -> DrawRequest:
    """Return the request of a frame that ``request_frame`` made."""
    height, width, samples, shadows = header["quality"]
    quality = Quality(int(height), int(width), int(samples), bool(shadows))
    return DrawRequest(header["assets"], quality, **arrays)
