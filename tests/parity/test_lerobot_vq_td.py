"""VQ-BeT and TD-MPC beside LeRobot's own (0.6.1), both ways: a checkpoint of either acts and learns
the same in both.

Needs LeRobot in a venv of its own: set PROCTOR_LEROBOT_PYTHON to that venv's python.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="policies need torch: pip install 'proctor[torch]'")
sys.path.insert(0, str(Path(__file__).parents[1] / "golden"))
import vq_td_cases as cases  # noqa: E402
from recipes import GOLDEN  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from test_vq_td_tiny import check_played, check_trained  # noqa: E402

from proctor.policies.lerobot.checkpoint.checkpoint import (  # noqa: E402
    instantiate_network,
    read_checkpoint,
    read_config,
)
from proctor.policies.lerobot.checkpoint.saving import write_checkpoint  # noqa: E402
from proctor.policies.lerobot.processors.pipelines import read_pipelines  # noqa: E402
from proctor.policies.runtime.chunk_policy import LoadedCheckpoint  # noqa: E402

HERE = Path(__file__).parent
PYTHON = os.environ.get("PROCTOR_LEROBOT_PYTHON", "")
pytestmark = pytest.mark.skipif(
    not Path(PYTHON).is_file(), reason="LeRobot not installed (set PROCTOR_LEROBOT_PYTHON)"
)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folder(one_thread, tmp_path_factory) -> Path:
    """Checkpoints of both sides with random weights, and what LeRobot makes of each."""
    folder = tmp_path_factory.mktemp("both")
    torch.manual_seed(5)
    for name in cases.CASES:
        plugin, config, _ = read_config(GOLDEN / name)
        network = instantiate_network(plugin, config)
        pipelines = read_pipelines(GOLDEN / name, config)
        parts = LoadedCheckpoint(config, network, plugin.prefix, *pipelines)
        write_checkpoint(parts, folder / "ours" / name, for_lerobot="0.6.1")
    words = [PYTHON, HERE / "lerobot_vq_td_side.py", folder]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", cases.CASES)
@pytest.mark.parametrize("whose", ["ours", "theirs"])
def test_a_checkpoint_acts_and_learns_the_same_on_both_sides(folder, monkeypatch, name, whose):
    expected = load_file(folder / whose / f"{name}.safetensors")
    check_played(name, read_checkpoint(folder / whose / name), expected, monkeypatch)
    check_trained(name, read_checkpoint(folder / whose / name), expected)
