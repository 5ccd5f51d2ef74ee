"""The families that are told in words beside LeRobot's own (0.6.1), both ways: it loads what we
save, weights, steps and settings, and plays as it did; we load what it saves of that again.

Needs LeRobot with transformers in a venv of its own: set PROCTOR_LEROBOT_VLA_PYTHON to its python.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="policies need torch: pip install 'proctor[torch]'")
transformers = pytest.importorskip("transformers", reason="pip install 'proctor[vla]'")
sys.path.insert(0, str(Path(__file__).parents[1] / "golden"))
import test_dit_run as dit  # noqa: E402
import test_pi_runs as pi  # noqa: E402
import test_smolvla_run as smolvla  # noqa: E402
import test_xvla_run as xvla  # noqa: E402
from recipes import assert_close  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from tests.tiny_pi import tiny_sizes  # noqa: E402

from proctor.policies.lerobot.checkpoint.checkpoint import read_checkpoint  # noqa: E402
from proctor.policies.lerobot.checkpoint.saving import write_checkpoint  # noqa: E402

HERE = Path(__file__).parent
PYTHON = os.environ.get("PROCTOR_LEROBOT_VLA_PYTHON", "")
pytestmark = [
    pytest.mark.vla,
    pytest.mark.skipif(
        not Path(PYTHON).is_file(),
        reason="LeRobot with transformers not installed (set PROCTOR_LEROBOT_VLA_PYTHON)",
    ),
]
EXPECTED = {
    "smolvla": (smolvla.RUN, "chunk", 1e-5),
    "pi0": (pi.RUNS / "pi0", "chunk", 1e-4),
    "pi05": (pi.RUNS / "pi05", "chunk", 1e-4),
    "pi0_fast": (pi.RUNS / "pi0_fast", "chunk", 1e-4),
    "xvla_ee6d": (xvla.RUN, "ee6d/chunk", 1e-5),
    "xvla_auto": (xvla.RUN, "auto/chunk", 1e-5),
    "multi_task_dit_flow": (dit.RUN, "flow/chunk", 1e-5),
    "multi_task_dit_diffusion": (dit.RUN, "diffusion/chunk", 1e-5),
}
"""Where the goldens have what LeRobot plays, its name there, and how far off we may be."""


@pytest.fixture(autouse=True, scope="module")
def tiny():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with tiny_sizes(vocabulary=pi.VOCABULARY):
        yield
    torch.set_num_threads(before)


def clip_with_weights(folder: Path) -> Path:
    """Return a CLIP that LeRobot can load: its weights are a checkpoint's, before they are used."""
    shutil.copytree(dit.RUN / "clip", folder)
    config = transformers.CLIPConfig.from_pretrained(folder)
    transformers.CLIPModel(config).save_pretrained(folder)
    return folder


def goldens(case: str, folder: Path, clip: Path) -> Path:
    """Return the goldens' checkpoint, whole, as LeRobot saved it."""
    family, _, variant = case.rpartition("_")
    if case == "smolvla":
        return smolvla.whole(folder)
    if family == "xvla":
        xvla.whole(folder, variant)
        for file in folder.glob("*.json"):
            file.write_text(file.read_text().replace("../tokenizer", str(xvla.RUN / "tokenizer")))
        return folder
    if family == "multi_task_dit":
        return dit.whole(folder, variant, clip)
    return pi.checkpoint(case, folder)


def act(case: str, folder: Path, monkeypatch) -> torch.Tensor:
    family, _, variant = case.rpartition("_")
    if case == "smolvla":
        return smolvla.act(folder, monkeypatch)
    if family == "xvla":
        noise = load_file(xvla.RUN / "outputs.safetensors")[f"{variant}/noise"]
        return xvla.act(folder, noise, monkeypatch)
    return (dit if family == "multi_task_dit" else pi).act(folder, monkeypatch)


@pytest.fixture(scope="module")
def folder(tiny, tmp_path_factory) -> Path:
    """What we saved of each, LeRobot's chunks of that, and what it saved again."""
    folder = tmp_path_factory.mktemp("both")
    clip = clip_with_weights(folder / "clip")
    for case in EXPECTED:
        whole = goldens(case, folder / "goldens" / case, clip)
        write_checkpoint(read_checkpoint(whole), folder / "ours" / case, for_lerobot="0.6.1")
    words = [PYTHON, HERE / "lerobot_language_side.py", folder]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    for held in folder.glob("ours/*/*tokenizer"):  # LeRobot leaves them to the Hub
        shutil.copytree(held, folder / "theirs" / held.parent.name / held.name)
    return folder


@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", EXPECTED)
def test_lerobot_plays_what_we_saved_as_it_did(folder, case):
    golden, name, tolerance = EXPECTED[case]
    found = load_file(folder / f"{case}.safetensors")["chunk"]
    assert_close("chunk", found, load_file(golden / "outputs.safetensors")[name], tolerance)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", EXPECTED)
def test_we_play_what_it_saves_of_that_again(folder, case, monkeypatch):
    golden, name, tolerance = EXPECTED[case]
    found = act(case, folder / "theirs" / case, monkeypatch)
    assert_close("chunk", found, load_file(golden / "outputs.safetensors")[name], tolerance)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", EXPECTED)
def test_its_settings_and_steps_are_those_that_we_wrote(folder, case):
    for file in ("config.json", "policy_preprocessor.json", "policy_postprocessor.json"):
        ours, theirs = (
            json.loads((folder / w / case / file).read_text()) for w in ("ours", "theirs")
        )
        assert ours == theirs, file
