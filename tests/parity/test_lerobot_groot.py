"""GR00T beside LeRobot's own (0.6.1), both ways: it loads what we save and acts as we do; we load
what it saves of that again.

Needs LeRobot with transformers and diffusers: set PROCTOR_LEROBOT_VLA_PYTHON to its python.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="policies need torch: pip install 'proctor[torch]'")
pytest.importorskip("tokenizers", reason="words need a tokenizer: pip install 'proctor[vla]'")
sys.path.insert(0, str(Path(__file__).parents[1] / "golden"))
import test_groot_run as groot  # noqa: E402
from groot_folders import write_base, write_checkpoint_of  # noqa: E402
from recipes import assert_close  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

from proctor.policies.lerobot.checkpoint.checkpoint import read_checkpoint  # noqa: E402
from proctor.policies.lerobot.checkpoint.saving import write_checkpoint  # noqa: E402

PYTHON = os.environ.get("PROCTOR_LEROBOT_VLA_PYTHON", "")
SIDE = Path(__file__).with_name("lerobot_groot_side.py")
CASES = ("arm", "new")
pytestmark = [
    pytest.mark.vla,
    pytest.mark.skipif(
        not Path(PYTHON).is_file(),
        reason="LeRobot with transformers not installed (set PROCTOR_LEROBOT_VLA_PYTHON)",
    ),
]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with our checkpoints, LeRobot's chunks of them, and what it saved."""
    folder = tmp_path_factory.mktemp("both")
    base = write_base(folder / "model")
    for case in CASES:
        golden = write_checkpoint_of(case, base, folder / "golden" / case)
        write_checkpoint(read_checkpoint(golden), folder / "ours" / case)
    command = [PYTHON, str(SIDE), str(folder), str(base)]
    offline = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=offline)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.mark.parametrize("case", CASES)
def test_lerobot_loads_what_we_save_and_acts_as_we_do(both, case, monkeypatch):
    theirs = load_file(both / f"{case}.safetensors")["chunk"]
    ours = groot.act(groot.loaded(both / "ours" / case), monkeypatch)
    assert_close("chunk", ours, theirs, 1e-5)


@pytest.mark.parametrize("case", CASES)
def test_we_load_what_lerobot_saves(both, case, monkeypatch):
    ours, theirs = (
        groot.act(groot.loaded(both / name / case), monkeypatch) for name in ("ours", "theirs")
    )
    assert torch.equal(ours, theirs)
