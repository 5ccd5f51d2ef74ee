"""Against LeRobot itself (0.4.4, 0.6.1) on this machine: it loads what we write, and agrees.

Needs LeRobot in a venv of its own: set PROCTOR_LEROBOT_PYTHON to that venv's python.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="policies need torch: pip install 'proctor[torch]'")
from safetensors.torch import load_file, save_file  # noqa: E402

from proctor.features import Feature, FeatureKind  # noqa: E402
from proctor.policies.act.config import ActConfig  # noqa: E402
from proctor.policies.base import Batch, Query  # noqa: E402
from proctor.policies.diffusion.config import DiffusionConfig  # noqa: E402
from proctor.policies.lerobot.checkpoint.checkpoint import instantiate_network, read_checkpoint  # noqa: E402
from proctor.policies.lerobot.checkpoint.saving import write_checkpoint  # noqa: E402
from proctor.policies.lerobot.config.families import family  # noqa: E402
from proctor.policies.lerobot.config.feature_json import channels_first  # noqa: E402
from proctor.policies.lerobot.processors.pipelines import default_pipelines  # noqa: E402
from proctor.policies.runtime.chunk_policy import ChunkPolicy, LoadedCheckpoint  # noqa: E402
from proctor.policies.runtime.network import draw_noise  # noqa: E402
from proctor.policies.tdmpc.config import TdMpcConfig  # noqa: E402
from proctor.policies.vqbet.config import VqBetConfig  # noqa: E402
from proctor.types import EpisodeSpec, Task  # noqa: E402

HERE = Path(__file__).parent
PYTHON = os.environ.get("PROCTOR_LEROBOT_PYTHON", "")
pytestmark = pytest.mark.skipif(
    not Path(PYTHON).is_file(), reason="LeRobot not installed (set PROCTOR_LEROBOT_PYTHON)"
)

STATE = Feature(FeatureKind.STATE, (4,), "float32")
ENV = Feature(FeatureKind.ENV, (5,), "float32")
CAMERA = Feature(FeatureKind.VISUAL, (70, 90, 3), "uint8")
SQUARE = Feature(FeatureKind.VISUAL, (64, 64, 3), "uint8")
ACTION = {"action": Feature(FeatureKind.ACTION, (3,), "float32")}
SIGHT = {
    "observation.state": STATE,
    "observation.images.top": CAMERA,
    "observation.images.wrist_cam": CAMERA,
}
BLIND = {"observation.state": STATE, "observation.environment_state": ENV}
SMALL_ACT = {"dim_model": 64, "n_heads": 4, "dim_feedforward": 96, "chunk_size": 8}
SMALL_UNET = {"down_dims": [32, 64], "diffusion_step_embed_dim": 32, "horizon": 8}


def small_act(inputs, **changes) -> ActConfig:
    fields = {**SMALL_ACT, "n_action_steps": 8, "n_encoder_layers": 2, **changes}
    return ActConfig(input_features=inputs, output_features=ACTION, device="cpu", **fields)


def small_diffusion(inputs, **changes) -> DiffusionConfig:
    fields = {
        **SMALL_UNET,
        "n_action_steps": 7,
        "num_train_timesteps": 20,
        "spatial_softmax_num_keypoints": 8,
        **changes,
    }
    return DiffusionConfig(input_features=inputs, output_features=ACTION, device="cpu", **fields)


def small_vqbet(**changes) -> VqBetConfig:
    sizes = {"gpt_input_dim": 32, "gpt_output_dim": 24, "gpt_hidden_dim": 32, "gpt_n_head": 4}
    fields = {**sizes, "gpt_n_layer": 2, "gpt_block_size": 20, "crop_shape": [64, 80], **changes}
    inputs = {"observation.state": STATE, "observation.image": CAMERA}
    return VqBetConfig(input_features=inputs, output_features=ACTION, device="cpu", **fields)


def small_tdmpc(inputs, **changes) -> TdMpcConfig:
    fields = {"latent_dim": 10, "mlp_dim": 24, "use_mpc": False, **changes}
    return TdMpcConfig(input_features=inputs, output_features=ACTION, device="cpu", **fields)


CASES = {
    "act, two cameras": small_act(SIGHT),
    "act, pre-norm, gelu": small_act(SIGHT, pre_norm=True, feedforward_activation="gelu"),
    "act, one camera, two decoder layers": small_act(
        {"observation.state": STATE, "observation.images.top": CAMERA}, n_decoder_layers=2
    ),
    "act, blind, no vae": small_act(BLIND, use_vae=False),
    "diffusion, ddpm": small_diffusion(BLIND),
    "diffusion, ddpm, fewer steps": small_diffusion(BLIND, num_inference_steps=5),
    "diffusion, ddim, sample": small_diffusion(
        BLIND, noise_scheduler_type="DDIM", prediction_type="sample", num_inference_steps=7
    ),
    "diffusion, linear, unclipped": small_diffusion(
        BLIND, beta_schedule="linear", clip_sample=False, noise_scheduler_type="DDIM"
    ),
    "diffusion, scaled linear": small_diffusion(BLIND, beta_schedule="scaled_linear"),
    "diffusion, sigmoid": small_diffusion(BLIND, beta_schedule="sigmoid"),
    "diffusion, film bias only": small_diffusion(BLIND, use_film_scale_modulation=False),
    "diffusion, separate encoders": small_diffusion(SIGHT, crop_shape=[64, 80]),
    "diffusion, shared group norm": small_diffusion(
        SIGHT, use_group_norm=True, use_separate_rgb_encoder_per_camera=False
    ),
    "diffusion, resize and crop": small_diffusion(SIGHT, resize_shape=[48, 64], crop_ratio=0.9),
    "vqbet": small_vqbet(),
    "vqbet, one code after the other": small_vqbet(sequentially_select=True, crop_shape=None),
    "tdmpc, blind": small_tdmpc(BLIND),
    "tdmpc, one camera": small_tdmpc({"observation.state": STATE, "observation.image": SQUARE}),
}


def make_parts(config) -> LoadedCheckpoint:
    plugin = family(config.type)
    assert plugin is not None
    if config.type != "tdmpc":
        config = replace(config, pretrained_backbone_weights=None)
    torch.manual_seed(7)
    network = instantiate_network(plugin, config).eval()
    for key, value in network.state_dict().items():
        if key.endswith("running_var"):
            value.uniform_(0.5, 2)
    stats = {}
    for key, feature in {**config.input_features, **ACTION}.items():
        shape = (3, 1, 1) if feature.kind is FeatureKind.VISUAL else feature.shape
        low = torch.rand(shape)
        stats[key] = {"mean": low, "std": low + 0.5, "min": -low, "max": low + 1}
    pre, post = default_pipelines(config, stats, stats)
    return LoadedCheckpoint(config, network, plugin.prefix, pre, post)


def our_chunk(parts: LoadedCheckpoint, inputs) -> np.ndarray:
    policy = ChunkPolicy(parts, "cpu")
    if "noise" in inputs:
        (name,) = parts.network.draws
        policy._draw = lambda query: {name: inputs["noise"][query.spec.index].numpy()}
    specs = [EpisodeSpec(Task("s", 0, "t", "t", 9, 9), i, 0) for i in range(2)]
    queries = [Query(spec, 0, policy.new_episode(spec)) for spec in specs]
    seen = {k: v.numpy() for k, v in inputs.items() if k != "noise"}
    for key in parts.config.cameras:
        seen[key] = np.round(np.moveaxis(seen[key], 2, -1) * 255).astype(np.uint8)
    return policy.act(Batch(queries, seen))


def make_inputs(parts: LoadedCheckpoint):
    torch.manual_seed(3)
    steps = parts.config.n_obs_steps
    inputs = {}
    for key, feature in parts.config.input_features.items():
        if feature.kind is FeatureKind.VISUAL:
            image = torch.randint(0, 256, (2, steps, *channels_first(feature)), dtype=torch.uint8)
            inputs[key] = image.float() / 255
        else:
            inputs[key] = torch.randn(2, steps, *feature.shape)
    if parts.network.draws:
        inputs["noise"] = draw_noise(
            parts.network.draws, torch.Generator().manual_seed(3), 2
        ).popitem()[1]
    return inputs


def ask_lerobot(checkpoint: Path, inputs, out: Path) -> torch.Tensor:
    out.mkdir()
    save_file(inputs, out / "inputs.safetensors")
    with_torchvision = subprocess.run([PYTHON, "-c", "import torchvision"], capture_output=True)
    paths = [] if with_torchvision.returncode == 0 else [HERE / "stub", HERE.parents[1] / "src"]
    done = subprocess.run(
        [PYTHON, HERE / "lerobot_side.py", checkpoint, out / "inputs.safetensors", out],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return load_file(out / "chunk.safetensors")["chunk"]


@pytest.fixture(scope="module")
def installed() -> dict[str, str]:
    """The packages on LeRobot's side, with their versions."""
    asked = "import importlib.metadata as m; print({d.name: d.version for d in m.distributions()})"
    done = subprocess.run([PYTHON, "-c", asked], capture_output=True, text=True, check=True)
    return ast.literal_eval(done.stdout)


@pytest.mark.parametrize("name", CASES)
def test_lerobot_loads_what_we_write_and_acts_the_same(name, installed, tmp_path):
    if name.startswith("diffusion") and "diffusers" not in installed:
        pytest.skip("LeRobot's Diffusion needs diffusers there, which is not installed")
    parts = make_parts(CASES[name])
    inputs = make_inputs(parts)
    write_checkpoint(parts, tmp_path / "ours", for_lerobot=installed["lerobot"])
    theirs = ask_lerobot(tmp_path / "ours", inputs, tmp_path / "out")
    found = torch.from_numpy(our_chunk(read_checkpoint(tmp_path / "ours"), inputs))
    worst = (found - theirs).abs().max().item()
    print(f"{name}: max |difference| {worst:.1e}")
    torch.testing.assert_close(found, theirs, rtol=1e-4, atol=1e-4)
    assert_same_files(tmp_path / "ours", tmp_path / "out" / "saved")


def assert_same_files(ours: Path, theirs: Path) -> None:
    """Check that what LeRobot writes is what we wrote: the same files with the same contents."""
    names = {file.name for file in ours.iterdir()}
    assert names <= {file.name for file in theirs.iterdir()}
    for name in names:
        if name.endswith(".json"):
            left, right = (json.loads((f / name).read_text()) for f in (ours, theirs))
            assert list(left) == list(right), name
            assert left == right, name
        else:
            left, right = load_file(ours / name), load_file(theirs / name)
            assert left.keys() == right.keys()
            assert all(torch.equal(left[key], right[key]) for key in left), name
