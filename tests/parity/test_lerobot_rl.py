"""Checkpoints of the Gaussian actor and the reward classifier beside LeRobot's own (0.6.1), both
ways: files of either side have the same outputs in both.

Needs LeRobot with transformers in a venv of its own: set PROCTOR_LEROBOT_PYTHON to that venv's
python.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="policies need torch: pip install 'proctor[torch]'")
sys.path.insert(0, str(Path(__file__).parents[1] / "golden"))
from gaussian_actor_cases import write_tiny_resnet10  # noqa: E402
from recipes import load_case  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from proctor.policies.lerobot.checkpoint.checkpoint import instantiate_network, read_checkpoint  # noqa: E402
from proctor.policies.lerobot.checkpoint.saving import write_checkpoint  # noqa: E402
from proctor.policies.lerobot.config.config import decode_config  # noqa: E402
from proctor.policies.lerobot.config.families import family  # noqa: E402
from proctor.policies.lerobot.processors.pipelines import default_pipelines  # noqa: E402
from proctor.policies.runtime.chunk_policy import LoadedCheckpoint  # noqa: E402

HERE = Path(__file__).parent
PYTHON = os.environ.get("PROCTOR_LEROBOT_PYTHON", "")
pytestmark = [
    pytest.mark.skipif(
        not Path(PYTHON).is_file(), reason="LeRobot not installed (set PROCTOR_LEROBOT_PYTHON)"
    ),
    pytest.mark.timeout(900),
]
CASES = ("sac_state", "sac_img_discrete", "sac_resnet10", "reward_classifier")
ROWS = 3


def stats_of(features: dict[str, Any]) -> dict[str, dict[str, list[float]]]:
    """Return statistics that change every number."""
    found: dict[str, dict[str, list[float]]] = {}
    for key, feature in features.items():
        count = feature["shape"][0]
        steps = [0.1 * (n + 1) for n in range(count)]
        names = ("mean", "std") if feature["type"] == "VISUAL" else ("min", "max")
        found[key] = {names[0]: [-step for step in steps], names[1]: [1 + step for step in steps]}
    return found


def observations(features: dict[str, Any]) -> dict[str, Any]:
    return {key: torch.rand(ROWS, *feature["shape"]) for key, feature in features.items()}


def write_ours(raw: dict[str, Any], stats: dict[str, Any], folder: Path) -> None:
    plugin = family(raw["type"])
    assert plugin is not None
    config = decode_config(raw, plugin.config, "parity")
    tensors = {
        key: {
            name: torch.tensor(v).reshape(-1, 1, 1) if "images" in key else torch.tensor(v)
            for name, v in each.items()
        }
        for key, each in stats.items()
    }
    network = instantiate_network(plugin, config)
    pipelines = default_pipelines(config, tensors, tensors)
    parts = LoadedCheckpoint(config, network, plugin.prefix, *pipelines)
    write_checkpoint(parts, folder, for_lerobot="0.6.1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of both sides with random weights, and LeRobot's outputs of each."""
    folder = tmp_path_factory.mktemp("both")
    tiny = write_tiny_resnet10(folder / "r10_tiny")
    torch.manual_seed(5)
    for name in CASES:
        raw = load_case(name)[0]
        raw = raw.get("policy", raw)
        for encoder in ("vision_encoder_name", "model_name"):
            if raw.get(encoder) is not None:
                raw[encoder] = tiny
        inputs = raw["input_features"]
        stats = stats_of(inputs | raw["output_features"])
        if raw["type"] == "gaussian_actor":
            raw["dataset_stats"] = stats
        write_ours(raw, stats, folder / "ours" / name)
        theirs = folder / "theirs" / name
        theirs.mkdir(parents=True)
        (theirs / "config.json").write_text(json.dumps(raw))
        (theirs / "stats.json").write_text(json.dumps(stats))
        save_file(observations(inputs), folder / f"{name}.safetensors")
    words = [PYTHON, HERE / "lerobot_rl_side.py", folder]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("whose", ["ours", "theirs"])
def test_a_checkpoint_has_the_same_outputs_on_both_sides(
    folder: Path, name: str, whose: str
) -> None:
    expected = load_file(folder / whose / f"{name}.safetensors")
    parts = read_checkpoint(folder / whose / name)
    network: Any = parts.network.eval()
    seen = parts.preprocessor(load_file(folder / f"{name}.safetensors"))
    with torch.no_grad():
        if name == "reward_classifier":
            found = {"logits": network.logits(seen), "reward": network.predict_reward(seen)}
        else:
            moments = network.actor(seen)
            found = {"mean": moments.mean, "log_std": moments.variance.log()}
            if network.discrete_critic is not None:
                found["gripper"] = network.discrete_critic(seen)
    assert set(found) == set(expected)
    for key, value in found.items():
        torch.testing.assert_close(value, expected[key], atol=1e-5, rtol=1e-5)
