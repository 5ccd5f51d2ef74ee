"""Loading a large checkpoint: time, host memory relative to the file, and inference speed.

    python -m measurements loading [--family=pi0|pi05|groot|groot_n15] [--device=cuda|cpu]
        [--batches=1,8] [--shards=1] [--quantize] [--compile] [--folder=DIR]

Writes a checkpoint of true size with random bfloat16 weights, like published ones (the tied
embedding is stored once), to ``--folder`` (default: a new folder in /dev/shm), loads it in a
separate process, and removes it. Host memory is sampled: mapped pages of the file (RssFile,
RssShmem) can be reclaimed, the rest (RssAnon) cannot.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from measurements.command import machine, make_parser
from proctor.features import ACTION, ActionSpec, Feature, FeatureKind, Interface
from proctor.policies.base import Batch, Query
from proctor.policies.blocks.encoder_sizes import SiglipSizes
from proctor.policies.groot.network import network as groot_network
from proctor.policies.groot.network.qwen_sizes import QwenSizes, RopeSizes, TextSizes, VisionSizes
from proctor.policies.groot.network.sizes import EagleSizes, GrootSizes, TransformerSizes
from proctor.policies.lerobot.checkpoint.checkpoint import instantiate_network, load_policy
from proctor.policies.lerobot.checkpoint.saving import write_pipeline
from proctor.policies.lerobot.checkpoint.weights import SkipWeightInit
from proctor.policies.lerobot.config.config import encode_config
from proctor.policies.lerobot.config.families import family
from proctor.policies.lerobot.processors.pipelines import default_pipelines
from proctor.policies.pi0 import sizes
from proctor.policies.pi0.sizes import GemmaSize
from proctor.policies.runtime.runner import Runner
from proctor.types import EpisodeSpec, Task

GOLDEN = Path(__file__).parents[1] / "tests" / "golden" / "data"
WORDS = GOLDEN / "pi_runs" / "words"
WORDS_OF = {"groot": GOLDEN / "groot_run" / "backbone"}
"""Tokenizers of families that need one of their own; the others use WORDS."""
CAMERAS = ("observation.images.top", "observation.images.wrist")
STATE = "observation.state"
REPEATS = 20


def use_tiny_models() -> None:
    """Replace the sizes of the published models by tiny ones, and use one thread."""
    torch.set_num_threads(1)
    sizes.GEMMAS["gemma_2b"] = GemmaSize(64, 2, 128, 8, 1, 16)
    sizes.GEMMAS["gemma_300m"] = GemmaSize(32, 2, 64, 8, 1, 16)
    sizes.VISION, sizes.VOCABULARY = SiglipSizes(32, 64, 2, 2, patch_size=14), 1024
    text = TextSizes(32, 64, 2, 4, 2, 16, 512, rope_parameters=RopeSizes([4, 2, 2]))
    vision = VisionSizes(
        hidden_size=16, intermediate_size=32, depth=2, num_heads=2, out_hidden_size=32,
        num_position_embeddings=64, deepstack_visual_indexes=[0],
    )  # fmt: skip
    narrow = TransformerSizes(num_layers=2, num_attention_heads=2, attention_head_dim=16)
    head = GrootSizes(
        backbone_embedding_dim=32, hidden_size=24, input_embedding_dim=32,
        diffusion_model_cfg=replace(narrow, output_dim=24), vl_self_attention_cfg=narrow,
    )  # fmt: skip
    vars(groot_network)["read_sizes"] = lambda base: (head, QwenSizes(text, vision))
    eagle = EagleSizes(
        replace(text, rope_parameters=RopeSizes(rope_theta=1e6)),
        SiglipSizes(32, 64, 2, 2, image_size=28, patch_size=14),
        image_token_index=5, select_layer=2,
    )  # fmt: skip
    small = replace(
        head, action_horizon=16, max_state_dim=64, max_action_dim=32, num_target_vision_tokens=4
    )
    vars(groot_network)["read_n15_sizes"] = lambda base: (small, eagle)


def write_tokenizer(kind: str, folder: Path) -> None:
    """Write a tokenizer that the family takes; its words are not those of the published one."""
    if kind != "groot_n15":
        pixels = shutil.ignore_patterns("preprocessor_config.json")  # the tiny backbone's
        shutil.copytree(WORDS_OF.get(kind, WORDS), folder, ignore=pixels)
        return
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

    special = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<img>", "</img>", "<IMG_CONTEXT>")
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({text: n for n, text in enumerate([*special, *letters])}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.add_special_tokens([AddedToken(text, normalized=False) for text in special])
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").write_text(made.to_str())
    (folder / "tokenizer_config.json").write_text('{"pad_token": "<|endoftext|>"}')


def offered() -> Interface:
    """Return an interface with two cameras, a state and actions as LIBERO's."""
    cameras = {key: Feature(FeatureKind.VISUAL, (256, 256, 3), "uint8") for key in CAMERAS}
    state = {STATE: Feature(FeatureKind.STATE, (8,), "float32")}
    return Interface("measured", {**cameras, **state}, ActionSpec(7, -1.0, 1.0), 10)


def write(kind: str, folder: Path, device: str, shards: int) -> None:
    """Write a checkpoint with random weights in ``shards`` files."""
    plugin, interface = family(kind), offered()
    assert plugin is not None
    action = {ACTION: Feature(FeatureKind.ACTION, (interface.action.size,), "float32")}
    config: Any = plugin.config()
    config = replace(
        config, input_features=dict(interface.features), output_features=action, dtype="bfloat16"
    )
    folder.mkdir(parents=True)
    words = folder / "tokenizer"
    write_tokenizer(kind, words)
    (folder / "config.json").write_text(encode_config(config, "0.6"))
    statistics = {}
    for key, size in ((STATE, 8), (ACTION, interface.action.size)):
        plain = {"mean": 0.0, "std": 1.0, "q01": -1.0, "q99": 1.0, "min": -1.0, "max": 1.0}
        statistics[key] = {name: torch.full((size,), value) for name, value in plain.items()}
    where = "tokenizer_assets_repo" if kind == "groot_n15" else "tokenizer"
    told = replace(config, **{where: str(words)})
    for pipeline in default_pipelines(told, statistics, statistics):
        write_pipeline(pipeline, folder)
    with torch.device("meta"), SkipWeightInit():
        wanted = instantiate_network(plugin, config).state_dict()
    tensors = {}
    generator = torch.Generator(device).manual_seed(0)
    for name, like in wanted.items():
        if name.endswith("embed_tokens.weight"):
            continue
        drawn = torch.empty(like.shape, dtype=torch.bfloat16, device=device)
        drawn.normal_(generator=generator)
        fan_in = like[0].numel() if like.dim() > 1 else 100
        tensors[plugin.prefix + name] = (drawn / fan_in**0.5).cpu()
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return
    files = {key: f"model-{number % shards}.safetensors" for number, key in enumerate(tensors)}
    for file in sorted(set(files.values())):
        held = {key: tensor for key, tensor in tensors.items() if files[key] == file}
        save_file(held, folder / file, metadata={"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))


@contextmanager
def sampling_memory(found: dict[str, float]) -> Iterator[None]:
    """Sample each kind of host memory; keep the maxima in ``found``, in GB."""
    done = threading.Event()

    def look() -> None:
        for line in Path("/proc/self/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in ("VmRSS", "RssAnon", "RssFile", "RssShmem"):
                found[name] = max(found.get(name, 0.0), int(value.split()[0]) * 1024 / 1e9)

    def watch() -> None:
        while not done.wait(0.01):
            look()

    thread = threading.Thread(target=watch, daemon=True)
    look()
    thread.start()
    yield
    done.set()
    thread.join()
    look()


def batch_of(policy: Any, rows: int) -> Batch:
    generator = np.random.default_rng(0)
    task = Task("measured", 0, "push", "push the red block to the plate", 50, 10)
    queries = [Query(EpisodeSpec(task, row, 0), 0, None) for row in range(rows)]
    seen = {
        key: generator.integers(0, 256, (rows, 1, 256, 256, 3), dtype=np.uint8) for key in CAMERAS
    }
    seen[STATE] = generator.normal(size=(rows, 1, 8)).astype(np.float32)
    return Batch(queries, {key: seen[key] for key in policy.spec.inputs})


def timed(policy: Any, rows: int, repeats: int) -> float:
    """Return the median ms of a chunk for ``rows`` episodes, from observations to actions."""
    batch, times = batch_of(policy, rows), []
    policy.act(batch)
    for _ in range(repeats):
        start = time.perf_counter()
        policy.act(batch)
        times.append(time.perf_counter() - start)
    return 1000 * median(times)


def measure(
    folder: Path, device: str, asked: dict[str, Any], batches: list[int], repeats: int
) -> dict[str, Any]:
    """Load the checkpoint with the settings in ``asked``, and time its inference."""
    on_gpu = device == "cuda"
    if on_gpu:
        torch.zeros(1, device=device)  # initialise CUDA before memory is sampled
    before: dict[str, float] = {}
    with sampling_memory(before):
        pass
    peak: dict[str, float] = {}
    start = time.perf_counter()
    with sampling_memory(peak):
        # A CPU may take minutes for a product in bfloat16.
        given = {"device": device, **asked, **({} if on_gpu else {"dtype": "float32"})}
        policy = load_policy(str(folder), None, given, offered())
        if on_gpu:
            torch.cuda.synchronize()
    load_s = time.perf_counter() - start
    file_gb = sum(path.stat().st_size for path in folder.glob("model*.safetensors")) / 1e9
    grown = {f"host_{name}_gb": round(peak[name] - before[name], 3) for name in peak}
    found: dict[str, Any] = {
        "parameters": sum(p.numel() for p in policy.network.parameters()),
        "file_gb": round(file_gb, 3),
        "load_s": round(load_s, 2),
        **grown,
        "host_peak_of_file": round((peak["VmRSS"] - before["VmRSS"]) / file_gb, 3),
    }
    if on_gpu:
        found["gpu_weights_gb"] = round(torch.cuda.memory_allocated() / 1e9, 3)
    for rows in batches:
        found[f"ms_per_chunk_batch_{rows}"] = round(timed(policy, rows, repeats), 2)
    if on_gpu:
        found["gpu_reserved_gb"] = round(torch.cuda.memory_reserved() / 1e9, 3)
        graphs, policy.runner = policy.runner, Runner(policy._forward, policy.device, batches)
        for rows in batches:
            found[f"ms_eager_batch_{rows}"] = round(timed(policy, rows, repeats), 2)
        policy.runner = graphs
    return found


def arguments(words: Sequence[str]) -> argparse.Namespace:
    """Parse the flags."""
    parser = make_parser("loading", __doc__)
    parser.add_argument("--family", default="pi0", choices=("pi0", "pi05", "groot", "groot_n15"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batches", default="1,8")
    parser.add_argument("--shards", type=int, default=1, help="files that hold the weights")
    parser.add_argument("--quantize", action="store_true", help="as --policy.quantize=int8")
    parser.add_argument("--compile", action="store_true", help="as --policy.compile=true")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--load", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(words)


def main(words: Sequence[str]) -> None:
    """Write the checkpoint, measure it in a separate process, print JSON, remove it."""
    asked = arguments(words)
    if asked.tiny:
        use_tiny_models()
    if asked.load is not None:
        given = {"compile": asked.compile, "quantize": "int8" if asked.quantize else None}
        batches = [int(size) for size in asked.batches.split(",")]
        repeats = 1 if asked.tiny else REPEATS
        print(json.dumps(measure(asked.load, asked.device, given, batches, repeats)))
        return
    memory = "/dev/shm"  # noqa: S108  mkdtemp makes a private folder
    scratch = Path(tempfile.mkdtemp(prefix="proctor-", dir=asked.folder or memory))
    try:
        start = time.perf_counter()
        write(asked.family, scratch / "checkpoint", asked.device, asked.shards)
        print(f"written in {time.perf_counter() - start:.1f} s", file=sys.stderr)
        again = [sys.executable, "-m", "measurements", "loading", *words]
        again.append(f"--load={scratch / 'checkpoint'}")
        said = subprocess.run(again, check=True, stdout=subprocess.PIPE, text=True).stdout  # noqa: S603
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    device = torch.cuda.get_device_name() if asked.device == "cuda" else "cpu"
    made = {name: vars(asked)[name] for name in ("family", "tiny", "shards", "quantize", "compile")}
    print(machine(device=device, torch=torch.__version__, **made))
    print(json.dumps(json.loads(said.splitlines()[-1]), indent=1))
