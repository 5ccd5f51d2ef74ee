"""Inference speed of a policy, from observations to actions, compared with its forward pass.

    python -m measurements inference [act diffusion smolvla] [--device=cpu|cuda] [--batches=1,16]
        [--size=480] [--dtype=float32] [--compile]

Networks have their true size and random weights; the images are Meta-World's. ``act`` is the whole
call that the engine waits for: staging, transfer, normalisation, the network, transfer back. The
forward pass alone runs on normalised inputs on the device. On CUDA both are graph replays, and the
graph is compared with eager execution. Nothing is downloaded: SmolVLA's tokenizer is synthetic.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from measurements.command import machine, make_parser, say
from proctor import plugins
from proctor.benchmarks.base import interface_of
from proctor.features import Array
from proctor.policies.base import Batch, Query
from proctor.policies.runtime.numerics import inference_numerics
from proctor.policies.runtime.runner import Runner

FAMILIES = ("act", "diffusion", "smolvla")
_TINY_VLM = {
    "model_type": "smolvlm",
    "scale_factor": 2,
    "text_config": {
        "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 4,
        "num_attention_heads": 3, "num_key_value_heads": 1, "vocab_size": 64,
    },
    "vision_config": {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "image_size": 64, "patch_size": 16,
    },
}  # fmt: skip
_TINY: dict[str, dict[str, Any]] = {
    "act": {"dim_model": 32, "n_heads": 2, "dim_feedforward": 32, "n_encoder_layers": 1},
    "diffusion": {"down_dims": [32, 64]},
    "smolvla": {"num_vlm_layers": 4, "resize_imgs_with_padding": [64, 64]},
}


def write_vlm(folder: Path) -> None:
    """Write a tokenizer that maps every word to one token, and the config of a small VLM."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "<pad>": 1}, unk_token="<unk>"))  # noqa: S106
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"pad_token": "<pad>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps(_TINY_VLM))


def fields_of(family: str, size: int, vlm: Path, *, tiny: bool) -> dict[str, Any]:
    """Return the settings of a family's policy; ``vlm`` is the folder of ``write_vlm``."""
    fields: dict[str, Any] = {}
    if family == "diffusion":
        crop = size * 7 // 8
        fields = {"noise_scheduler_type": "DDIM", "num_inference_steps": 10}
        fields["crop_shape"] = [crop, crop]
    if family == "smolvla":
        fields = {"tokenizer": str(vlm)} | ({"vlm_model_name": str(vlm)} if tiny else {})
    return fields | (_TINY[family] if tiny else {})


def make(family: str, device: str, size: int, **fields: Any) -> tuple[Any, Any]:
    """Return a policy with random weights for Meta-World, and the benchmark."""
    benchmark = plugins.find_benchmark("metaworld")
    config: Any = benchmark.config(task="mt50")
    config.observation_height = config.observation_width = size
    made = benchmark.make(config)
    plugin: Any = plugins.find_policy(family)
    return plugin.make(plugin.config(device=device, **fields), interface_of(made)), made


def batch_for(policy: Any, benchmark: Any, n: int) -> Batch:
    """Return ``n`` random observations, each of a different task."""
    rng = np.random.default_rng(0)
    specs = [benchmark.spec(task, 0, 1000) for task in benchmark.tasks()[:n]]
    observations = {}
    for key in policy.spec.inputs:
        feature = benchmark.features()[key]
        shape = (n, policy.spec.n_obs_steps, *feature.shape)
        if feature.dtype == "uint8":
            observations[key] = rng.integers(0, 256, shape, dtype=np.uint8)
        else:
            observations[key] = rng.uniform(-1, 1, shape).astype(feature.dtype)
    return Batch([Query(spec, 0, policy.new_episode(spec)) for spec in specs], observations)


def seconds(work: Callable[[], Any], device: torch.device, repeats: int) -> float:
    """Return the median seconds of ``work``, after warming up."""
    for _ in range(min(3, repeats)):
        work()
    times = []
    for _ in range(repeats):
        _synchronize(device)
        start = time.perf_counter()
        work()
        _synchronize(device)
        times.append(time.perf_counter() - start)
    return median(times)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def rows_of(policy: Any, batch: Batch) -> dict[str, Array]:
    """Return the rows that ``act`` passes to the runner for a batch."""
    kept: dict[str, Array] = {}
    runner = policy.runner

    def keeping(rows: dict[str, Array]) -> Any:
        kept.update(rows)
        return runner(rows)

    policy.runner = keeping
    policy.act(batch)
    policy.runner = runner
    return kept


def bare_forward(policy: Any, rows: Mapping[str, Array]) -> Callable[[], Any]:
    """Return the network alone, on normalised inputs on its device; on CUDA as a graph."""
    kept: dict[str, Any] = {}
    network = policy.network
    original = network.chunk

    def keeping(inputs: Any, draws: Any) -> torch.Tensor:
        kept.update(inputs=inputs, draws=draws)
        return torch.zeros(1)

    network.chunk = keeping
    with torch.inference_mode():
        policy._forward({k: torch.tensor(v, device=policy.device) for k, v in rows.items()})
    network.chunk = original

    def forward() -> Any:
        with torch.inference_mode():
            return network.chunk(kept["inputs"], kept["draws"])

    if policy.device.type != "cuda":
        return forward
    stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        for _ in range(3):
            forward()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.inference_mode(), torch.cuda.graph(graph):
        network.chunk(kept["inputs"], kept["draws"])
    return graph.replay


def report(policy: Any, batch: Batch, repeats: int) -> None:
    """Print the times of one batch."""
    device, rows = policy.device, rows_of(policy, batch)
    act_s = seconds(lambda: policy.act(batch), device, repeats)
    with inference_numerics(device):
        forward_s = seconds(bare_forward(policy, rows), device, repeats)
    say(f"batch {len(batch.queries)}: act", f"{1000 * act_s:.2f} ms")
    say("  bare forward pass", f"{1000 * forward_s:.2f} ms", f"act is {act_s / forward_s:.3f}x")
    if device.type == "cuda":
        eager = Runner(policy._forward, device, (len(batch.queries),))
        graph_s = seconds(lambda: policy.runner(rows), device, repeats)
        eager_s = seconds(lambda: eager(rows), device, repeats)
        say("  transfer and network, as a graph", f"{1000 * graph_s:.2f} ms")
        say("  the same, eager", f"{1000 * eager_s:.2f} ms", f"{eager_s / graph_s:.2f}x")


def main(words: Sequence[str]) -> None:
    """Measure the named families, or all."""
    parser = make_parser("inference", __doc__, FAMILIES)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batches", help="batch sizes; default: 1, and 16 on CUDA")
    parser.add_argument("--size", type=int, help="image side; default: 480, on a CPU 240")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--compile", action="store_true", help="as --policy.compile=true")
    given = parser.parse_args(words)
    on_cpu = given.device == "cpu"
    size = 64 if given.tiny else given.size or (240 if on_cpu else 480)
    repeats = 1 if given.tiny else 7 if on_cpu else 50
    batches = given.batches or ("1" if on_cpu else "1,16")
    if on_cpu:
        torch.set_num_threads(1)
    name = "cpu" if on_cpu else torch.cuda.get_device_name()
    print(machine(device=name, torch=torch.__version__, size=size, dtype=given.dtype))
    with tempfile.TemporaryDirectory() as folder:
        write_vlm(Path(folder))
        for family in given.parts or FAMILIES:
            fields = fields_of(family, size, Path(folder), tiny=given.tiny)
            fields |= {"dtype": given.dtype, "compile": given.compile}
            policy, benchmark = make(family, given.device, size, **fields)
            weights = sum(p.numel() for p in policy.network.parameters())
            print(f"{family} {size}x{size}, {weights / 1e6:.1f} M parameters")
            for n in map(int, batches.split(",")):
                report(policy, batch_for(policy, benchmark, n), repeats)
