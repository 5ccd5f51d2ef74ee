"""X-VLA on LIBERO's interface: poses of 20 numbers are seen and said; no simulator is opened."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.refusals import refuses
from tests.tiny_families import TINY, tiny_models

from proctor.benchmarks.base import interface_of
from proctor.errors import SpecMismatch
from proctor.features import STATE, Interface
from proctor.policies.base import Batch, Query
from proctor.policies.lerobot.checkpoint.checkpoint import load_policy
from proctor.policies.lerobot.checkpoint.saving import write_checkpoint
from proctor.policies.xvla.config import PLUGIN, XVlaConfig
from proctor.policies.xvla.steps import axis_angles

pytestmark = pytest.mark.vla
pytest.importorskip("libero", reason="pip install 'proctor[libero]'")
from proctor.benchmarks.libero import poses  # noqa: E402
from proctor.benchmarks.libero.benchmark import ControlMode, Libero, LiberoConfig  # noqa: E402

IMAGE, WRIST = "observation.images.image", "observation.images.image2"


@pytest.fixture(autouse=True, scope="module")
def tiny() -> Iterator[None]:
    with tiny_models():
        yield


def offered(mode: ControlMode, side: int = 48) -> Interface:
    sizes = {"observation_height": side, "observation_width": side}
    return interface_of(Libero(LiberoConfig(task="libero_goal", control_mode=mode, **sizes)))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    fields = TINY["xvla"] | {"action_mode": "ee6d", "max_len_seq": 128}
    policy: Any = PLUGIN.make(XVlaConfig(**fields), offered(ControlMode.EE6D))
    folder = tmp_path_factory.mktemp("xvla") / "libero"
    write_checkpoint(policy.parts, folder)
    return folder


def test_it_loads_and_acts_in_poses_on_pictures_of_any_size(checkpoint: Path) -> None:
    interface = offered(ControlMode.EE6D, side=64)
    policy = load_policy(str(checkpoint), None, {"device": "cpu"}, interface)
    assert set(policy.spec.inputs) == {IMAGE, WRIST, STATE}
    tasks = Libero(LiberoConfig(task="libero_goal")).tasks()[:3]
    specs = [Libero(LiberoConfig(task="libero_goal")).spec(task, 0, 7) for task in tasks]
    drawn = np.random.default_rng(0)
    seen = {
        key: drawn.integers(0, 256, (3, 1, 64, 64, 3), dtype=np.uint8) for key in (IMAGE, WRIST)
    }
    turn = np.eye(3).ravel()
    seen[STATE] = np.stack([poses.encode_pose(drawn.normal(size=3), turn) for _ in range(3)])[
        :, None
    ]
    queries = [Query(spec, 0, policy.new_episode(spec)) for spec in specs]
    actions = policy.act(Batch(queries, seen))
    assert actions.shape == (3, policy.spec.n_action_steps, interface.action.size)
    assert np.isfinite(actions).all()
    grippers = actions[..., [9, 19]]
    assert ((grippers > 0) & (grippers < 1)).all()
    assert poses.decode_pose_action(actions[0, 0]).shape == (7,)
    alone = policy.act(Batch(queries[:1], {key: value[:1] for key, value in seen.items()}))
    np.testing.assert_array_equal(alone[0], actions[0])


@pytest.mark.parametrize("mode", [ControlMode.RELATIVE, ControlMode.ABSOLUTE])
def test_other_control_modes_are_refused_in_one_line(checkpoint: Path, mode: ControlMode) -> None:
    with refuses(SpecMismatch, "policy.state-size-mismatch") as refused:
        load_policy(str(checkpoint), None, {"device": "cpu"}, offered(mode))
    assert "observation.state" in str(refused.value)
    assert "20" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_poses_are_turned_into_the_rotation_that_lerobot_plays() -> None:
    drawn = np.random.default_rng(1)
    for _ in range(50):
        pose = drawn.normal(size=20).astype(np.float32)
        vector, expected = poses.decode_pose_action(pose)[3:6], axis_angles(pose[3:9])
        np.testing.assert_allclose(matrix_of(vector), matrix_of(expected), atol=1e-4)
        assert poses.decode_pose_action(pose)[6] == (1.0 if pose[9] > 0.5 else -1.0)
    turn = matrix_of(np.array([0.3, -0.2, 1.1]))
    np.testing.assert_allclose(
        poses.decode_pose_action(poses.encode_pose(np.ones(3), turn.ravel()))[:6],
        [1, 1, 1, 0.3, -0.2, 1.1],
        atol=1e-5,
    )


def matrix_of(vector: np.ndarray) -> np.ndarray:
    """Return the rotation matrix of a rotation vector (Rodrigues)."""
    vector = vector.astype(np.float64)
    angle = float(np.linalg.norm(vector))
    x, y, z = vector / angle
    across = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.asarray(np.eye(3) + np.sin(angle) * across + (1 - np.cos(angle)) * across @ across)
