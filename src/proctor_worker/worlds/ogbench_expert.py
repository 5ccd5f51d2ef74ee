"""Scripted expert of OGBench's tasks: chooses the next subgoal for OGBench's own Markov oracles.

OGBench's oracles reach one random target each, for data collection. A task's goal takes several:
this module picks the next object, button, drawer or window, and asks the oracle of that kind.
"""

from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import numpy as np

_NEAR_M = 0.04
"""OGBench's tolerance of success."""
_OPEN, _OPEN_ENOUGH = -0.16, -0.12
"""Position of the drawer's slide when it is open, and from where a cube fits in."""
_LIFTED_M = {"cube": 0.16, "button": 0.16, "drawer": 0.18, "window": 0.28}
"""Height of the hand at which the oracles have finished: they retreat above what they moved."""
_CUBE_M = 0.04


class _Subgoal(NamedTuple):
    """One thing to move: its kind, its number, and its place, slide or button state."""

    kind: str
    number: int
    target: Any


class OracleExpert:
    """Computes actions from the simulator's state; keeps only the subgoal that it works on."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self._oracles: Dict[str, Any] = {}
        self._subgoal: Optional[_Subgoal] = None

    def reset(self) -> None:
        """Forget the subgoal of the last episode."""
        self._subgoal = None

    def action(self) -> Any:
        """Return the next action, within [-1, 1]."""
        info = self._env.compute_ob_info()
        if self._subgoal is None or self._is_finished(self._subgoal, info):
            self._subgoal = self._next(info)
            if self._subgoal is not None:
                self._start(self._subgoal.kind)
        if self._subgoal is None:
            return np.zeros(5)
        return self._oracles[self._subgoal.kind].select_action(
            None, dict(info, **_oracle_info(self._env, self._subgoal, info))
        )

    def _start(self, kind: str) -> None:
        """Make the oracle of a kind ready: it draws where to go at the end, which is fixed here."""
        if not self._oracles:
            self._oracles = _make_oracles(self._env)
        oracle = self._oracles[kind]
        drawn = np.random.get_state()
        oracle.reset(None, None)
        np.random.set_state(drawn)
        low, high = self._env._arm_sampling_bounds
        oracle._final_pos = np.array([*(low + high)[:2] / 2, 0.33])
        oracle._final_yaw = 0.0

    def _is_finished(self, subgoal: _Subgoal, info: Dict[str, Any]) -> bool:
        """Tell whether a subgoal is reached and the hand is away, or the oracle has given up."""
        if self._oracles[subgoal.kind].done:
            return True
        lifted = info["proprio/effector_pos"][2] > _LIFTED_M[subgoal.kind]
        return bool(lifted and _is_reached(subgoal, info))

    def _next(self, info: Dict[str, Any]) -> Optional[_Subgoal]:
        env = self._env
        if not hasattr(env, "_num_cubes"):
            return _next_button(env)
        if hasattr(env, "_drawer_site_id"):
            return _next_in_scene(env, info)
        return _next_cube(env, info)


def _make_oracles(env: Any) -> Dict[str, Any]:
    from ogbench.manipspace.oracles.markov.button_markov import ButtonMarkovOracle
    from ogbench.manipspace.oracles.markov.cube_markov import CubeMarkovOracle
    from ogbench.manipspace.oracles.markov.drawer_markov import DrawerMarkovOracle
    from ogbench.manipspace.oracles.markov.window_markov import WindowMarkovOracle

    puzzle = not hasattr(env, "_num_cubes")
    return {
        "cube": CubeMarkovOracle(env=env),
        "button": ButtonMarkovOracle(env=env, gripper_always_closed=puzzle),
        "drawer": DrawerMarkovOracle(env=env),
        "window": WindowMarkovOracle(env=env),
    }


def _is_reached(subgoal: _Subgoal, info: Dict[str, Any]) -> bool:
    """Tell whether a subgoal is reached, by the oracles' own tolerances."""
    if subgoal.kind == "cube":
        away = info["privileged/block_%d_pos" % subgoal.number] - subgoal.target
        is_open = info["proprio/gripper_contact"] < 0.1
        return bool(np.linalg.norm(away) <= _NEAR_M / 2 and is_open)
    if subgoal.kind == "button":
        return bool(info["privileged/button_%d_state" % subgoal.number] == subgoal.target)
    slide = info["privileged/%s_pos" % subgoal.kind][0]
    return bool(abs(slide - subgoal.target) <= 0.01)


def _oracle_info(env: Any, subgoal: _Subgoal, info: Dict[str, Any]) -> Dict[str, Any]:
    """Return the entries that OGBench's data collection adds for its oracles."""
    key = "privileged/target_"
    if subgoal.kind == "cube":
        return {
            key + "block": subgoal.number,
            key + "block_pos": subgoal.target,
            key + "block_yaw": np.zeros(1),
        }
    if subgoal.kind == "button":
        top = env.data.site_xpos[env._button_site_ids[subgoal.number]].copy()
        return {
            key + "button": subgoal.number,
            key + "button_state": subgoal.target,
            key + "button_top_pos": top,
        }
    slide = subgoal.target - info["privileged/%s_pos" % subgoal.kind][0]
    axis = env.data.xaxis[env.model.joint(subgoal.kind + "_slide").id]
    handle = info["privileged/%s_handle_pos" % subgoal.kind] + slide * axis
    return {key + subgoal.kind + "_handle_pos": handle}


def _next_in_scene(env: Any, info: Dict[str, Any]) -> Optional[_Subgoal]:
    """Return the next subgoal: the cube, then drawer and window, then the locks."""
    cube, goal = info["privileged/block_0_pos"], env.data.mocap_pos[env._cube_target_mocap_ids[0]]
    drawer, window = info["privileged/drawer_pos"][0], info["privileged/window_pos"][0]
    into_drawer = goal[1] < -0.3
    if into_drawer and not env._is_in_drawer(cube):
        if drawer > _OPEN_ENOUGH:
            return _slide(env, "drawer", 0, _OPEN)
        return _Subgoal("cube", 0, env._drawer_center.copy())
    if not into_drawer and np.linalg.norm(cube - goal) > _NEAR_M:
        return _Subgoal("cube", 0, goal.copy())
    if abs(drawer - env._target_drawer_pos) > _NEAR_M:
        return _slide(env, "drawer", 0, env._target_drawer_pos)
    if abs(window - env._target_window_pos) > _NEAR_M:
        return _slide(env, "window", 1, env._target_window_pos)
    for number in range(env._num_buttons):
        if env._cur_button_states[number] != env._target_button_states[number]:
            return _Subgoal("button", number, int(env._target_button_states[number]))
    return None


def _slide(env: Any, kind: str, button: int, target: float) -> _Subgoal:
    """Return the subgoal that moves a drawer or window; first its button, if it is locked."""
    if env._cur_button_states[button] == 0:
        return _Subgoal("button", button, 1)
    return _Subgoal(kind, 0, target)


def _next_button(env: Any) -> Optional[_Subgoal]:
    """Return the next button of the fewest presses that solve the puzzle."""
    presses = solve_lights(
        env._num_rows, env._num_cols, env._cur_button_states ^ env._target_button_states
    )
    if presses is None or not presses.any():
        return None
    hand = env.data.site_xpos[env._pinch_site_id]
    wanted = np.flatnonzero(presses)
    places = env.data.site_xpos[np.asarray(env._button_site_ids)[wanted]]
    nearest = int(wanted[np.argmin(np.linalg.norm(places[:, :2] - hand[:2], axis=1))])
    return _Subgoal("button", nearest, int(1 - env._cur_button_states[nearest]))


def solve_lights(rows: int, columns: int, wrong: Any) -> Any:
    """Return the fewest presses, 0 or 1 per button, that flip exactly ``wrong``; None: no way.

    A press flips a button and its neighbours: linear equations modulo 2.
    """
    count = rows * columns
    matrix = np.zeros((count, count + 1), np.int64)
    for button in range(count):
        row, column = divmod(button, columns)
        for drow, dcolumn in ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1)):
            near = (row + drow, column + dcolumn)
            if 0 <= near[0] < rows and 0 <= near[1] < columns:
                matrix[near[0] * columns + near[1], button] = 1
    matrix[:, count] = np.asarray(wrong, np.int64) % 2
    pivots: List[int] = []
    for button in range(count):
        at = len(pivots)
        below = np.flatnonzero(matrix[at:, button])
        if not below.size:
            continue
        matrix[[at, at + below[0]]] = matrix[[at + below[0], at]]
        for other in np.flatnonzero(matrix[:, button]):
            if other != at:
                matrix[other] ^= matrix[at]
        pivots.append(button)
    if matrix[len(pivots) :, count].any():
        return None
    free = [button for button in range(count) if button not in pivots]
    best = None
    for choice in range(2 ** len(free)):
        presses = np.zeros(count, np.int64)
        for place, button in enumerate(free):
            presses[button] = choice >> place & 1
        for at, button in enumerate(pivots):
            presses[button] = (matrix[at, count] + matrix[at, :count] @ presses) % 2
        if best is None or presses.sum() < best.sum():
            best = presses
    return best


def _next_cube(env: Any, info: Dict[str, Any]) -> Optional[_Subgoal]:
    """Return a cube that can go to its goal now; if none can, one that makes room."""
    count = env._num_cubes
    places = np.array([info["privileged/block_%d_pos" % cube] for cube in range(count)])
    goals = np.array([env.data.mocap_pos[env._cube_target_mocap_ids[c]] for c in range(count)])
    found = next_cube(places, goals)
    if found is None:
        return None
    cube, target = found
    return _Subgoal("cube", cube, target)


def next_cube(places: Any, goals: Any) -> Optional[Tuple[int, Any]]:
    """Return the next cube and its place: a goal that is free and supported, or a free spot."""
    wrong = np.flatnonzero(np.linalg.norm(places - goals, axis=1) > _NEAR_M)
    if not wrong.size:
        return None
    movable = [int(cube) for cube in wrong if not _is_covered(places, places[cube], int(cube))]
    for cube in sorted(movable, key=lambda cube: goals[cube][2]):
        if _is_free(places, goals[cube], cube) and _is_supported(places, goals, cube):
            return cube, goals[cube].copy()
    for cube in _blocking_first(places, goals, wrong):
        if not _is_covered(places, places[cube], cube):
            return cube, _free_spot(places, goals)
    return None


def _blocking_first(places: Any, goals: Any, wrong: Any) -> List[int]:
    """Return the wrong cubes; first those that are high, because they cover others."""
    return sorted((int(cube) for cube in wrong), key=lambda cube: -places[cube][2])


def _is_covered(places: Any, spot: Any, cube: int) -> bool:
    """Tell whether another cube lies on top of a spot."""
    return any(
        other != cube
        and np.linalg.norm(at[:2] - spot[:2]) < _CUBE_M
        and at[2] > spot[2] + _CUBE_M / 2
        for other, at in enumerate(places)
    )


def _is_free(places: Any, spot: Any, cube: int) -> bool:
    """Tell whether no other cube is at or above a spot."""
    return not any(
        other != cube
        and np.linalg.norm(at[:2] - spot[:2]) < 1.25 * _CUBE_M
        and at[2] > spot[2] - _CUBE_M / 2
        for other, at in enumerate(places)
    )


def _is_supported(places: Any, goals: Any, cube: int) -> bool:
    """Tell whether a goal is on the table, or on a cube that is at its own goal."""
    spot = goals[cube]
    if spot[2] < _CUBE_M:
        return True
    below = spot - [0.0, 0.0, _CUBE_M]
    return any(
        other != cube
        and np.linalg.norm(goals[other] - below) < _CUBE_M / 2
        and np.linalg.norm(at - goals[other]) <= _NEAR_M
        for other, at in enumerate(places)
    )


def _free_spot(places: Any, goals: Any) -> Any:
    """Return the spot on the table that is farthest from all cubes and goals."""
    grid = [
        np.array([x, y, _CUBE_M / 2])
        for x in np.linspace(0.32, 0.53, 8)
        for y in np.linspace(-0.28, 0.28, 15)
    ]
    taken = np.concatenate([places, goals])[:, :2]
    return max(grid, key=lambda spot: np.linalg.norm(taken - spot[:2], axis=1).min())
