"""Reads LIBERO's privileged state from a live simulator (layout: ``scene``)."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np

from proctor.benchmarks.libero.problem import Problem
from proctor.benchmarks.libero.scene import COLUMNS, ROWS
from proctor.features import Array


class PrivilegedState:
    """Fills the table from a live LIBERO environment; indices are looked up once."""

    def __init__(self, env: Any, problem: Problem) -> None:
        self._model, self._data = env.sim.model._model, env.sim.data._data
        self._hand = env.robots[0].eef_site_id
        self._fingers = env.robots[0]._ref_gripper_joint_pos_indexes
        self._table = np.zeros((ROWS, COLUMNS))
        self._bodies: list[tuple[int, int]] = []  # (row, body)
        self._sites: list[tuple[int, int]] = []
        self._joints: list[tuple[int, int]] = []  # (row, qpos address)
        mujoco.mj_kinematics(self._model, self._data)
        for row, name in enumerate(problem.part_names, start=1):
            if name in problem.category_of:
                self._add_thing(row, env.obj_body_id[name], env.get_object(name).joints)
            else:
                self._add_region(row, env.object_sites_dict[name])

    def read(self) -> Array:
        """Return a copy of the current table."""
        table, data = self._table, self._data
        self._place(table[0], data.site_xpos[self._hand], data.site_xmat[self._hand])
        left, right = data.qpos[self._fingers]
        table[0, 7] = left - right
        for row, body in self._bodies:
            table[row, 0:3] = data.xpos[body]
            table[row, 3:7] = data.xquat[body]
        for row, site in self._sites:
            self._place(table[row], data.site_xpos[site], data.site_xmat[site])
        for row, address in self._joints:
            table[row, 7] = data.qpos[address]
        return table.copy()

    @staticmethod
    def _place(row: Array, position: Array, matrix: Array) -> None:
        row[0:3] = position
        mujoco.mju_mat2Quat(row[3:7], matrix)

    def _add_thing(self, row: int, body: int, joints: list[str]) -> None:
        self._bodies.append((row, body))
        self._table[row, 8:11], self._table[row, 11:14] = self._box(body)
        ids = [self._model.joint(name).id for name in joints]
        if len(ids) == 1 and self._model.jnt_type[ids[0]] != mujoco.mjtJoint.mjJNT_FREE:
            self._joints.append((row, int(self._model.jnt_qposadr[ids[0]])))

    def _add_region(self, row: int, region: Any) -> None:
        self._sites.append((row, self._model.site(region.name).id))
        self._table[row, 8:11], self._table[row, 11:14] = -np.array(region.size), region.size
        if region.joints:
            joint = self._model.joint(region.joints[0]).id
            self._joints.append((row, int(self._model.jnt_qposadr[joint])))

    def _box(self, body: int) -> tuple[Array, Array]:
        """Return the corners of the body's rigid geometry, in the body's frame."""
        corners = []
        turn = self._data.xmat[body].reshape(3, 3)
        signs = np.array(list(np.ndindex(2, 2, 2))) * 2 - 1
        for geom in range(self._model.ngeom):
            if self._model.geom_group[geom] or not self._holds(body, geom):
                continue
            centre, half = self._model.geom_aabb[geom, :3], self._model.geom_aabb[geom, 3:]
            matrix = self._data.geom_xmat[geom].reshape(3, 3)
            world = self._data.geom_xpos[geom] + (centre + signs * half) @ matrix.T
            corners.append((world - self._data.xpos[body]) @ turn)
        points = np.concatenate(corners)
        return points.min(axis=0), points.max(axis=0)

    def _holds(self, body: int, geom: int) -> bool:
        at = int(self._model.geom_bodyid[geom])
        while at not in (0, body) and self._model.body_jntnum[at] == 0:
            at = int(self._model.body_parentid[at])
        return at == body
