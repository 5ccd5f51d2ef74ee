"""Perturbations of a MuJoCo scene: camera pose, light and surfaces.

They change the scene that is about to be rendered, never the model: physics, digests and the next
episode stay as they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from proctor.benchmarks.base import Benchmark
from proctor.benchmarks.mujoco.rendering import SceneEdit
from proctor.benchmarks.perturbations.base import ActivePerturbation, Dimension, PerturbedEpisode
from proctor.features import Array, FeatureKind


class _SceneDimension(Dimension):
    noticed_in = frozenset({FeatureKind.VISUAL})

    def unsupported(self, benchmark: Benchmark) -> str | None:
        """Refuse a benchmark that does not render with MuJoCo, or shows no camera."""
        if not benchmark.editable_scenes:
            return "Proctor does not render its scene"
        return None if self.noticed_keys(benchmark) else "it offers no camera image"


class Camera(_SceneDimension):
    """Every camera of the policy is shifted and turned, each in a random direction."""

    name = "camera"
    levels = ((0.01, 2.0), (0.03, 5.0), (0.06, 10.0))
    unit = "metres, degrees"

    def begin(self, episode: PerturbedEpisode) -> ActivePerturbation:
        """Return a shift and a rotation of the level's size."""
        shift_m, degrees = self.strength(episode.level)
        return _MovedCamera(episode, shift_m, float(np.radians(degrees)))


class _MovedCamera(ActivePerturbation):
    def __init__(self, episode: PerturbedEpisode, shift_m: float, angle: float) -> None:
        self._episode, self._shift_m, self._angle = episode, shift_m, angle

    def scene_edit(self) -> SceneEdit:
        return self._edit

    def _edit(self, scene: Any, model: Any, camera: str) -> None:
        """Move the camera that is about to render."""
        rng = self._episode.rng(camera)
        shift = self._shift_m * _direction(rng)
        turn = _rotation(_direction(rng), self._angle)
        for eye in (scene.camera[0], scene.camera[1]):  # MuJoCo averages both
            eye.pos[:] = eye.pos + shift
            eye.forward[:] = turn @ eye.forward
            eye.up[:] = turn @ eye.up


class Light(_SceneDimension):
    """Lights get brighter or darker, get a colour, and turn around the scene's vertical axis."""

    name = "light"
    levels = ((1.3, 0.05, 15.0), (1.7, 0.15, 30.0), (2.5, 0.3, 60.0))
    unit = "brightness multiplied or divided by, tint of a channel, degrees"

    def begin(self, episode: PerturbedEpisode) -> ActivePerturbation:
        """Return lights of the level's brightness, tint and direction."""
        factor, tint, degrees = self.strength(episode.level)
        rng = episode.rng()
        brightness = factor if rng.random() < 0.5 else 1 / factor
        colour = brightness * (1 + rng.uniform(-tint, tint, 3))
        angle = np.radians(degrees) * rng.choice((-1.0, 1.0))
        return _ChangedLight(colour, _rotation(np.array([0.0, 0.0, 1.0]), float(angle)))


class _ChangedLight(ActivePerturbation):
    def __init__(self, colour: Array, turn: Array) -> None:
        self._colour, self._turn = colour, turn

    def scene_edit(self) -> SceneEdit:
        return self._edit

    def _edit(self, scene: Any, model: Any, camera: str) -> None:
        """Change all lights; the headlight keeps its direction."""
        centre = np.asarray(model.stat.center)
        for number in range(scene.nlight):
            light = scene.lights[number]
            for part in (light.ambient, light.diffuse, light.specular):
                part[:] = part * self._colour  # above 1 too: OpenGL clamps the final colour only
            if not light.headlight:
                light.pos[:] = centre + self._turn @ (light.pos - centre)
                light.dir[:] = self._turn @ light.dir


class Texture(_SceneDimension):
    """Surfaces that cannot move (table, floor, walls) get other colours and textures.

    Robots and objects keep theirs, fixed bases and casings included, so instructions such as "the
    red cube" stay true.
    """

    name = "texture"
    levels = ((0.3, False), (0.6, False), (1.0, True))
    unit = "part of a random colour mixed in, other texture"

    def begin(self, episode: PerturbedEpisode) -> ActivePerturbation:
        """Return a random colour for every material and plain surface."""
        mixed, textures = self.strength(episode.level)
        return _ChangedSurfaces(episode, mixed, textures=textures)


class _ChangedSurfaces(ActivePerturbation):
    def __init__(self, episode: PerturbedEpisode, mixed: float, *, textures: bool) -> None:
        self._episode, self._mixed, self._textures = episode, mixed, textures
        self._looks: dict[tuple[str, int], tuple[Array, int | None]] = {}

    def scene_edit(self) -> SceneEdit:
        return self._edit

    def _edit(self, scene: Any, model: Any, camera: str) -> None:
        """Recolour the geoms of trees without joints."""
        import mujoco

        for number in range(scene.ngeom):
            shown = scene.geoms[number]
            if shown.objtype != mujoco.mjtObj.mjOBJ_GEOM:
                continue
            if _has_moving_parts(model, model.geom_bodyid[shown.objid]):
                continue
            colour, material = self._look(shown, model)
            shown.rgba[:3] = (1 - self._mixed) * shown.rgba[:3] + self._mixed * colour
            if material is not None and shown.matid >= 0:
                shown.matid = material

    def _look(self, shown: Any, model: Any) -> tuple[Array, int | None]:
        """Return the colour of a surface and the material whose texture it gets.

        Surfaces of one material stay alike. The choice depends on the model, not on what a camera
        shows.
        """
        shared = shown.matid >= 0
        key = ("material", int(shown.matid)) if shared else ("geom", int(shown.objid))
        if key not in self._looks:
            rng = self._episode.rng(*key)
            colour = rng.uniform(0.1, 1.0, 3)
            textured = np.unique(np.nonzero(model.mat_texid >= 0)[0])
            swapped = self._textures and len(textured) > 0
            self._looks[key] = (colour, int(rng.choice(textured)) if swapped else None)
        return self._looks[key]


def _has_moving_parts(model: Any, body: int) -> bool:
    """Return whether the tree of a body has joints, or is placed as a mocap body."""
    root = model.body_rootid[body]
    return bool(
        model.body_mocapid[root] >= 0 or (model.body_weldid[model.body_rootid == root] != 0).any()
    )


def _direction(rng: np.random.Generator) -> Array:
    vector = rng.standard_normal(3)
    return np.asarray(vector / np.linalg.norm(vector))


def _rotation(axis: Array, angle: float) -> Array:
    """Return the matrix of a rotation about ``axis`` by ``angle`` in radians (Rodrigues)."""
    x, y, z = axis
    cross: Array = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    turned: Array = np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * (cross @ cross)
    return turned
