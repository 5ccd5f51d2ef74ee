"""LIBERO simulator: robosuite's environment with cheap complete resets and lazy rendering."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from proctor.benchmarks.base import ROBOT, xyz
from proctor.benchmarks.guarded_sim import proctor_code
from proctor.benchmarks.libero import poses
from proctor.benchmarks.libero.privileged_state import PrivilegedState
from proctor.benchmarks.libero.problem import read_problem
from proctor.benchmarks.libero.world import global_randomness, make_world
from proctor.benchmarks.mujoco.render_config import RenderSettings
from proctor.benchmarks.mujoco.renderers import ImageRenderer, make_renderer
from proctor.benchmarks.mujoco.rendering import SceneEdit, release_pages
from proctor.benchmarks.mujoco.world import world_state
from proctor.features import ENVIRONMENT_STATE, STATE, Array, Observation
from proctor.system.graphics.gl import can_render
from proctor.types import CLOSEST, SUBGOALS, EpisodeSpec, StepResult
from proctor_worker.worlds.mujoco_tools import JointReader

SETTLE_STEPS = 10
SETTLE_ACTION = np.array([0, 0, 0, 0, 0, 0, -1], np.float32)
_SEEN_SUBSTEP = 24
"""robosuite samples its observables once in 25 substeps. After a reset and one restored state that
is substep 24: images and states show the world 2 ms before the end of a step."""
_SEEN_FIELDS = (
    *("qpos", "xpos", "xquat", "xmat", "geom_xpos", "geom_xmat", "site_xpos", "site_xmat"),
    *("cam_xpos", "cam_xmat", "light_xpos", "light_xdir"),
)
_MAX_DRAWS = 1000
_MAX_SCENES = 50
_MOST_SETTLING = 0.01
"""Largest horizontal motion of an object while a drawn scene settles, in metres. Objects are drawn
7 cm above the table, apart by their outlines; a few are not, and are thrown off."""


@dataclass(frozen=True)
class LiberoSimSettings:
    """Settings of the simulator of one task."""

    bddl_file: Path
    assets: Path
    init_states: Array  # float64 [states, 1 + nq + nv]
    camera_of: dict[str, str]
    render_settings: RenderSettings
    absolute: bool
    ee6d: bool = False
    """Whether states and actions are X-VLA's poses of 20 numbers."""
    upside_down: frozenset[str] = frozenset()
    """Image keys that stay upside down, as LIBERO renders them."""
    objects: Mapping[str, str] = field(default_factory=dict)
    """Object categories that LIBERO lacks -> its category that they are placed like."""


class LiberoSim:
    """A LIBERO environment whose episodes equal the first of a new one, bit for bit."""

    def __init__(self, settings: LiberoSimSettings) -> None:
        self._settings = settings
        with global_randomness(0):
            self._env = self._open_world()
        self._physics = _FastPhysics(self._env.sim)
        self._env.sim.reset = self._restore_initial
        self._sensors = _SensorSnapshot(self._env)
        self._state = PrivilegedState(self._env, read_problem(settings.bddl_file))
        self._env._observables = {}
        self._env._update_observables = self._after_substep
        # A new LIBERO environment has loaded the task twice by its first episode, and each time it
        # adds a sampler for every drawer, door and knob with an initial state.
        self._env.object_property_initializers *= 2
        self._substep = 0
        self._joints = JointReader(self._env.sim.model._model)
        self._start: dict[str, float] = {}
        self._renderer: ImageRenderer | None = None
        # The first object of interest and the second, or the hand where there is one only.
        movable = [name for name in self._env.obj_of_interest if name in self._env.objects_dict]
        self._approach = [*movable, ""][:2] if movable else []
        self.scene_edit: SceneEdit | None = None

    def _open_world(self) -> Any:
        """Make the robosuite environment; variants of LIBERO override this."""
        settings = self._settings
        return make_world(
            settings.bddl_file, settings.assets, textures=can_render(), objects=settings.objects
        )

    def reset(self, spec: EpisodeSpec) -> None:
        """Reset to the spec's init state, with fixtures placed by its seed, and let it settle.

        Without an init state, the seed places objects and robot too; scenes whose objects do not
        rest where they were placed are drawn again, as such init states are not published either.

        Raises:
            RuntimeError: no drawn scene came to rest.
        """
        if spec.init_state is not None:
            self._draw_world(spec.seed)
            self._env.sim.set_state_from_flattened(self._settings.init_states[spec.init_state])
            self._env.sim.forward()
            self._settle()
            return
        for draw in range(_MAX_SCENES):
            seed = spec.seed if not draw else np.random.SeedSequence([spec.seed, draw])
            self._draw_world(seed if isinstance(seed, int) else int(seed.generate_state(1)[0]))
            placed = self.object_positions()
            self._settle()
            moved = [at[:2] - placed[name][:2] for name, at in self.object_positions().items()]
            if np.abs(moved).max(initial=0.0) <= _MOST_SETTLING:
                return
        raise RuntimeError(f"{self._settings.bddl_file.stem}: no drawn scene comes to rest")

    def _settle(self) -> None:
        self._start = self._joints.read(self._env.sim.data._data.qpos)
        self._env._check_success()
        self._env._post_process()
        for _ in range(SETTLE_STEPS):  # every reset makes a new controller with relative actions
            self._step(SETTLE_ACTION)
        self._env.robots[0].controller.use_delta = not self._settings.absolute

    def step(self, action: Array) -> StepResult:
        """Advance the world by one action (robosuite clips it)."""
        with proctor_code():
            given = poses.decode_pose_action(action) if self._settings.ee6d else action
        return self._step(given)

    def _step(self, action: Array) -> StepResult:
        self._substep = 0
        with self._physics.within_step():
            _, reward, success, _ = self._env.step(np.asarray(action, np.float32))
        with proctor_code():
            solved = bool(success)
            return StepResult(float(reward), solved, terminated=solved, scores=self._scores(solved))

    def _scores(self, solved: bool) -> dict[str, float]:
        """Return the share of the goal's conditions that hold, and how near the object is."""
        goals = self._env.parsed_problem["goal_state"]
        held = len(goals) if solved else 0
        if not solved and len(goals) > 1:  # a step has just tested them: this changes nothing
            held = sum(bool(self._env._eval_predicate(goal)) for goal in goals)
        scores = {SUBGOALS: held / len(goals)}
        if self._approach:
            places = [self._position(name) for name in self._approach]
            scores[CLOSEST] = float(np.linalg.norm(places[0] - places[1]))
        return scores

    def _position(self, name: str) -> Array:
        """Return where a movable object is, or the hand (an empty name)."""
        if not name:
            return np.asarray(self._env.sim.data.site_xpos[self._env.robots[0].eef_site_id])
        joint = self._env.objects_dict[name].joints[-1]
        return np.asarray(self._env.sim.data.get_joint_qpos(joint)[:3])

    def observe(self, keys: Sequence[str]) -> Observation:
        """Return the current observation for ``keys``; image keys render."""
        with proctor_code():
            return {key: self._observe(key) for key in keys}

    def physics(self) -> Array:
        """Return joint positions and velocities, and the poses of bodies and sites."""
        return world_state(self._env.sim.data._data)

    def close(self) -> None:
        """Free the renderer and the model."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None
        self._env.close()
        del self._env, self._physics, self._sensors, self._state
        gc.collect()  # robosuite's objects have reference cycles, and a model has 280 MB

    def coordinates(self) -> dict[str, float]:
        """Return the positions of the task's objects, the hand and other objects, in metres."""
        positions, wanted = self.object_positions(), self._env.obj_of_interest
        first = [name for name in wanted if name in positions]
        hand = self._env.sim.data.site_xpos[self._env.robots[0].eef_site_id]
        found: dict[str, float] = {}
        for name in first:
            found |= xyz(name, positions[name])
        found |= xyz(f"{ROBOT} hand", hand)
        for name in positions:
            if name not in first:
                found |= xyz(name, positions[name])
        return found

    def start_state(self) -> dict[str, float]:
        """Return the joints of robot, objects and fixtures, before they settled.

        Where the seed has placed the fixtures does not count: episodes of one init state are
        variations of one start.
        """
        return self._start

    def object_positions(self) -> dict[str, Array]:
        """Return the positions of all movable objects, by their names in the BDDL file."""
        data = self._env.sim.data
        return {
            name: np.array(data.get_joint_qpos(body.joints[-1])[:3])
            for name, body in self._env.objects_dict.items()
        }

    def _restore_initial(self) -> None:
        """Restore the state of model and physics after their construction.

        It ends with a forward pass, as construction does: the constraint solver starts from its
        forces, and another start changes the last bits.
        """
        for values, compiled in self._env.compiled_fields:
            values[:] = compiled
        mujoco.mj_resetData(self._env.sim.model._model, self._env.sim.data._data)
        self._env.sim.forward()

    def _forget(self) -> None:
        """Clear the gripper's last command, which a soft reset keeps."""
        for robot in self._env.robots:
            robot.gripper.current_action = np.zeros(robot.gripper.dof)

    def _draw_world(self, seed: int) -> None:
        """Reset until the drawn object poses fit, as LIBERO does (without a limit)."""
        from robosuite.utils.errors import RandomizationError

        with global_randomness(seed):
            self._forget()
            for _ in range(_MAX_DRAWS):
                try:
                    self._env.reset()
                except RandomizationError:
                    continue
                self._forget()
                return
        raise RuntimeError(f"{self._settings.bddl_file.stem}: no room for the objects in any draw")

    def _after_substep(self, force: bool = False) -> None:
        self._substep += 1
        if self._substep == _SEEN_SUBSTEP:
            self._sensors.take()

    def _observe(self, key: str) -> Array:
        if key in self._settings.camera_of:
            return self._render(
                self._settings.camera_of[key], mirrored=key not in self._settings.upside_down
            )
        if key == STATE:
            return self._sensors.pose() if self._settings.ee6d else self._sensors.state()
        if key == ENVIRONMENT_STATE:
            return self._state.read()
        raise KeyError(key)

    def _render(self, camera: str, *, mirrored: bool) -> Array:
        model = self._env.sim.model._model
        if self._renderer is None:
            self._renderer = make_renderer(
                model, self._settings.render_settings, hidden_groups=(0,)
            )
            if not self._settings.render_settings.is_drawn:
                release_pages(model.tex_data)  # GL has its own copy now; 190 MB
        with self._sensors.shown() as data:
            pixels = self._renderer.render(data, camera, self.scene_edit)
        # Mirrored, as in LIBERO's data; or upside down, as LIBERO renders.
        return np.ascontiguousarray(pixels[:, ::-1] if mirrored else pixels[::-1])


class _SensorSnapshot:
    """The world at the last sensor sample of robosuite, stored until it is observed."""

    def __init__(self, env: Any) -> None:
        self._sim, self._robot = env.sim, env.robots[0]
        self._live = env.sim.data._data
        self._kept = mujoco.MjData(env.sim.model._model)
        self._pairs = [(getattr(self._kept, f), getattr(self._live, f)) for f in _SEEN_FIELDS]
        self._site_rgba = env.sim.model._model.site_rgba
        self._kept_rgba = self._site_rgba.copy()

    def take(self) -> None:
        """Store the current world."""
        for kept, live in self._pairs:
            kept[:] = live
        self._kept_rgba[:] = self._site_rgba

    def state(self) -> Array:
        """Return the hand's position, axis-angle and finger joints, float32 [8]."""
        body = self._sim.model.body_name2id(self._robot.robot_model.eef_name)
        position = self._kept.site_xpos[self._robot.eef_site_id]
        fingers = self._kept.qpos[self._robot._ref_gripper_joint_pos_indexes]
        angle = axis_angle(self._kept.xquat[body])
        return np.concatenate([position, angle, fingers]).astype(np.float32)

    def pose(self) -> Array:
        """Return the hand's pose of 20 numbers: sampled position, and the controller's rotation.

        The controller's rotation is one substep later, as in LeRobot's observations for X-VLA.
        """
        position = self._kept.site_xpos[self._robot.eef_site_id]
        return poses.encode_pose(position, np.asarray(self._robot.controller.ee_ori_mat))

    @contextmanager
    def shown(self) -> Iterator[Any]:
        """Yield the stored world for rendering, with its site colours (a stove's light)."""
        now = self._site_rgba.copy()
        self._site_rgba[:] = self._kept_rgba
        try:
            yield self._kept
        finally:
            self._site_rgba[:] = now


class _FastPhysics:
    """robosuite's three forward passes of a substep, without repeated work.

    Every substep computes forces for the environment, again for the controller and again to
    advance. Positions and velocities do not change in between, so their stages run once. The
    constraint solver runs three times, because each run starts from the last solution. The result
    is the same to the last bit.
    """

    def __init__(self, sim: Any) -> None:
        self._model, self._data = sim.model._model, sim.data._data
        assert self._model.opt.integrator == mujoco.mjtIntegrator.mjINT_EULER
        self._in_step = self._placed = False
        sim.forward, sim.step = self._forward, self._advance

    @contextmanager
    def within_step(self) -> Iterator[None]:
        """Mark a block in which only these calls change the world."""
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
