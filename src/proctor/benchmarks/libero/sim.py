"""One LIBERO simulator: robosuite's environment, made to forget cheaply and to render lazily."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from proctor.benchmarks.guarded_sim import proctor_code
from proctor.benchmarks.libero import poses
from proctor.benchmarks.libero.privileged_state import PrivilegedState
from proctor.benchmarks.libero.problem import read_problem
from proctor.benchmarks.libero.world import global_randomness, make_world
from proctor.benchmarks.mujoco.render_config import RenderSettings
from proctor.benchmarks.mujoco.rendering import CameraRenderer, release_pages
from proctor.benchmarks.mujoco.world import world_state
from proctor.features import ENVIRONMENT_STATE, STATE, Array, Observation
from proctor.system.gl import can_render
from proctor.types import EpisodeSpec, StepResult

SETTLE_STEPS = 10
SETTLE_ACTION = np.array([0, 0, 0, 0, 0, 0, -1], np.float32)
_SEEN_SUBSTEP = 24
"""robosuite samples what it observes once in 25 substeps, and after a reset and one restored
state that is substep 24: pictures and numbers show the world 2 ms before the step's end."""
_SEEN_FIELDS = (
    *("qpos", "xpos", "xquat", "xmat", "geom_xpos", "geom_xmat", "site_xpos", "site_xmat"),
    *("cam_xpos", "cam_xmat", "light_xpos", "light_xdir"),
)
_MAX_DRAWS = 1000


@dataclass(frozen=True)
class LiberoSimSettings:
    """What a simulator of one task is made of."""

    bddl_file: Path
    assets: Path
    init_states: Array  # float64 [states, 1 + nq + nv]
    camera_of: dict[str, str]
    render_settings: RenderSettings
    absolute: bool
    ee6d: bool = False
    """Whether the hand's pose is seen and said in 20 numbers."""
    upside_down: frozenset[str] = frozenset()
    """Pictures that stay as LIBERO draws them, upside down."""


class LiberoSim:
    """One LIBERO environment whose episodes equal the first of a new one, bit for bit."""

    def __init__(self, world: LiberoSimSettings) -> None:
        self._world = world
        with global_randomness(0):
            self._env = make_world(world.bddl_file, world.assets, textures=can_render())
        self._physics = _Physics(self._env.sim)
        self._env.sim.reset = self._start_anew
        self._seen = _Seen(self._env)
        self._state = PrivilegedState(self._env, read_problem(world.bddl_file))
        self._env._observables = {}
        self._env._update_observables = self._after_substep
        # A new LIBERO environment has read the task twice by its first episode, and each reading
        # adds a sampler for every drawer, door and knob that starts open, closed or turned.
        self._env.object_property_initializers *= 2
        self._substep = 0
        self._renderer: CameraRenderer | None = None

    def reset(self, spec: EpisodeSpec) -> None:
        """Put the world into the spec's init state, the fixtures where its seed says, settled."""
        assert spec.init_state is not None
        with global_randomness(spec.seed):
            self._forget()
            self._draw_world()
            self._forget()
        self._env.sim.set_state_from_flattened(self._world.init_states[spec.init_state])
        self._env.sim.forward()
        self._env._check_success()
        self._env._post_process()
        for _ in range(SETTLE_STEPS):  # every reset makes a new controller, a relative one
            self._step(SETTLE_ACTION)
        self._env.robots[0].controller.use_delta = not self._world.absolute

    def step(self, action: Array) -> StepResult:
        """Advance the world by one action (robosuite clips it)."""
        with proctor_code():
            given = poses.decode_pose_action(action) if self._world.ee6d else action
        return self._step(given)

    def _step(self, action: Array) -> StepResult:
        self._substep = 0
        with self._physics.within_step():
            _, reward, success, _ = self._env.step(np.asarray(action, np.float32))
        with proctor_code():
            return StepResult(reward=float(reward), success=bool(success), terminated=bool(success))

    def observe(self, keys: Sequence[str]) -> Observation:
        """Return the current observation for ``keys``; image keys render."""
        with proctor_code():
            return {key: self._observe(key) for key in keys}

    def physics(self) -> Array:
        """Return joints, speeds, and the poses of bodies and sites."""
        return world_state(self._env.sim.data._data)

    def close(self) -> None:
        """Free the renderer and the model."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None
        self._env.close()
        del self._env, self._physics, self._seen, self._state
        gc.collect()  # robosuite's objects point at each other in circles, and a model is 280 MB

    def object_positions(self) -> dict[str, Array]:
        """Return where every movable object is, by its name in the BDDL file."""
        data = self._env.sim.data
        return {
            name: np.array(data.get_joint_qpos(body.joints[-1])[:3])
            for name, body in self._env.objects_dict.items()
        }

    def _start_anew(self) -> None:
        """Give model and physics the state they were built in.

        Ends as building a simulation does: the forces computed here are where the constraint
        solver starts from next, and another start is another last bit.
        """
        for values, compiled in self._env.compiled_fields:
            values[:] = compiled
        mujoco.mj_resetData(self._env.sim.model._model, self._env.sim.data._data)
        self._env.sim.forward()

    def _forget(self) -> None:
        """Undo what a reset that keeps the model does not: the gripper's last command."""
        for robot in self._env.robots:
            robot.gripper.current_action = np.zeros(robot.gripper.dof)

    def _draw_world(self) -> None:
        """Reset, again while the objects drawn do not fit, as LIBERO does (without an end)."""
        from robosuite.utils.errors import RandomizationError

        for _ in range(_MAX_DRAWS):
            try:
                self._env.reset()
            except RandomizationError:
                continue
            return
        raise RuntimeError(f"{self._world.bddl_file.stem}: no room for the objects in any draw")

    def _after_substep(self, force: bool = False) -> None:
        self._substep += 1
        if self._substep == _SEEN_SUBSTEP:
            self._seen.take()

    def _observe(self, key: str) -> Array:
        if key in self._world.camera_of:
            return self._render(
                self._world.camera_of[key], turned=key not in self._world.upside_down
            )
        if key == STATE:
            return self._seen.pose() if self._world.ee6d else self._seen.state()
        if key == ENVIRONMENT_STATE:
            return self._state.read()
        raise KeyError(key)

    def _render(self, camera: str, *, turned: bool) -> Array:
        model = self._env.sim.model._model
        if self._renderer is None:
            self._renderer = CameraRenderer(model, self._world.render_settings, hidden_groups=(0,))
            release_pages(model.tex_data)  # GL has its own copy now; 190 MB
        with self._seen.shown() as data:
            pixels = self._renderer.render(data, camera)
        # Mirrored, as LIBERO's data; or as LIBERO draws, which is that turned by half a circle.
        return np.ascontiguousarray(pixels[:, ::-1] if turned else pixels[::-1])


class _Seen:
    """What robosuite's sensors saw last: the world at one substep, kept until somebody looks."""

    def __init__(self, env: Any) -> None:
        self._sim, self._robot = env.sim, env.robots[0]
        self._live = env.sim.data._data
        self._kept = mujoco.MjData(env.sim.model._model)
        self._pairs = [(getattr(self._kept, f), getattr(self._live, f)) for f in _SEEN_FIELDS]
        self._site_rgba = env.sim.model._model.site_rgba
        self._kept_rgba = self._site_rgba.copy()

    def take(self) -> None:
        """Keep what is seen now."""
        for kept, live in self._pairs:
            kept[:] = live
        self._kept_rgba[:] = self._site_rgba

    def state(self) -> Array:
        """Return the hand's position, its axis-angle and the fingers, float32 [8]."""
        body = self._sim.model.body_name2id(self._robot.robot_model.eef_name)
        position = self._kept.site_xpos[self._robot.eef_site_id]
        fingers = self._kept.qpos[self._robot._ref_gripper_joint_pos_indexes]
        angle = axis_angle(self._kept.xquat[body])
        return np.concatenate([position, angle, fingers]).astype(np.float32)

    def pose(self) -> Array:
        """Return the hand's pose in 20 numbers: where it was seen, turned as its controller has it.

        Which is one substep later, and what LeRobot shows X-VLA.
        """
        position = self._kept.site_xpos[self._robot.eef_site_id]
        return poses.encode_pose(position, np.asarray(self._robot.controller.ee_ori_mat))

    @contextmanager
    def shown(self) -> Iterator[Any]:
        """Lend the kept world to a renderer, lamps as they were then (a stove's is a site)."""
        now = self._site_rgba.copy()
        self._site_rgba[:] = self._kept_rgba
        try:
            yield self._kept
        finally:
            self._site_rgba[:] = now


class _Physics:
    """robosuite's three evaluations of a substep, without doing the same work three times.

    Every substep computes the forces for the environment, again for the controller and again to
    advance. Position and velocity do not change in between, so those stages are done once; the
    constraint solver runs all three times, because each run starts from the last one's answer.
    The result is the same to the last bit.
    """

    def __init__(self, sim: Any) -> None:
        self._model, self._data = sim.model._model, sim.data._data
        assert self._model.opt.integrator == mujoco.mjtIntegrator.mjINT_EULER
        self._in_step = self._placed = False
        sim.forward, sim.step = self._forward, self._advance

    @contextmanager
    def within_step(self) -> Iterator[None]:
        """Say that nothing but these calls moves the world until the block ends."""
        self._in_step = True
        try:
            yield
        finally:
            self._in_step = self._placed = False

    def _forward(self) -> None:
        if self._placed:
            mujoco.mj_forwardSkip(self._model, self._data, mujoco.mjtStage.mjSTAGE_VEL, 0)
        else:
            mujoco.mj_forward(self._model, self._data)
            self._placed = self._in_step

    def _advance(self, with_udd: bool = True) -> None:
        if not self._placed:
            mujoco.mj_step(self._model, self._data)
            return
        mujoco.mj_forwardSkip(self._model, self._data, mujoco.mjtStage.mjSTAGE_VEL, 0)
        mujoco.mj_checkAcc(self._model, self._data)
        mujoco.mj_Euler(self._model, self._data)
        self._placed = False


def axis_angle(quaternion: Array) -> Array:
    """Return the rotation vector of ``quaternion`` (w, x, y, z), its angle in [0, 2 pi)."""
    w = float(np.clip(quaternion[0], -1.0, 1.0))
    sine = np.sqrt(1.0 - w * w)
    if sine <= 1e-10:
        return np.zeros(3)
    return np.asarray(quaternion[1:] / sine * 2.0 * np.arccos(w))
