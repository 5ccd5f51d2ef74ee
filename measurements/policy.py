"""What a policy costs beside its forward pass, as ratios in one run.

    python measurements/policy.py [--device=cpu|cuda] [--batch=16] [--size=480]

`act` is all the engine waits for: staging, transfer, normalisation, the network, the way back. The
baseline is the bare forward pass of the same network on inputs that are already on the device and
normalised. On CUDA both are measured as graph replays, and the graph against eager execution.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import torch

from proctor import plugins
from proctor.benchmarks.base import interface_of
from proctor.machine.system import git_commit, usable_cores
from proctor.policies.base import Batch, Query
from proctor.policies.runtime.chunk_policy import DRAWN
from proctor.policies.runtime.network import draw
from proctor.policies.runtime.numerics import numerics_of
from proctor.policies.runtime.runner import Runner


def seconds(work: Callable[[], Any], device: torch.device, repeats: int) -> float:
    """Return the median seconds of ``work``, after warming up."""
    for _ in range(3):
        work()
    times = []
    for _ in range(repeats):
        _wait(device)
        start = time.perf_counter()
        work()
        _wait(device)
        times.append(time.perf_counter() - start)
    return median(times)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def make(kind: str, device: str, size: int, **fields: Any) -> tuple[Any, Any]:
    benchmark = plugins.find_benchmark("metaworld")
    config: Any = benchmark.config(task="mt50")
    config.observation_height = config.observation_width = size
    made = benchmark.make(config)
    plugin = plugins.find_policy(kind)
    return plugin.make(plugin.config(device=device, **fields), interface_of(made)), made


def batch_for(policy: Any, benchmark: Any, n: int) -> Batch:
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


def _draws(policy: Any, n: int, prefix: str = "") -> dict[str, torch.Tensor]:
    drawn = draw(policy.network.draws, torch.Generator().manual_seed(0), n)
    return {prefix + name: values.to(policy.device) for name, values in drawn.items()}


def bare_forward(policy: Any, batch: Batch) -> Callable[[], Any]:
    """Return the network alone, on normalised inputs on its device; on CUDA as a graph."""
    rows = {
        k: torch.from_numpy(np.array(v if v.dtype == np.uint8 else v.astype(np.float32)))
        for k, v in batch.observations.items()
    }
    on_device = {key: value.to(policy.device) for key, value in rows.items()}
    inputs: dict[str, torch.Tensor] = {}

    def keep(given: dict[str, torch.Tensor], draws: Any) -> torch.Tensor:
        inputs.update(given)
        return torch.zeros(1)

    network = policy.network
    original, network.chunk = network.chunk, keep
    with torch.inference_mode():
        policy._forward({**on_device, **_draws(policy, len(batch.queries), DRAWN)})
    network.chunk = original
    draws = _draws(policy, len(batch.queries))

    def forward() -> torch.Tensor:
        with torch.inference_mode():
            return network.chunk(inputs, draws)

    if policy.device.type != "cuda":
        return forward
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            forward()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.inference_mode(), torch.cuda.graph(graph):
        network.chunk(inputs, draws)
    return graph.replay


def report(name: str, policy: Any, benchmark: Any, n: int, repeats: int) -> None:
    batch = batch_for(policy, benchmark, n)
    act_s = seconds(lambda: policy.act(batch), policy.device, repeats)
    with numerics_of(policy.device):
        forward_s = seconds(bare_forward(policy, batch), policy.device, repeats)
    beside = act_s / forward_s - 1
    if policy.device.type == "cuda":
        _break_down(policy, batch, repeats)
    print(f"{name}, batch {n}: act {1000 * act_s:.2f} ms, bare forward {1000 * forward_s:.2f} ms")
    print(f"  act / forward {act_s / forward_s:.3f}x: beside the forward {100 * beside:.1f}%")
    if policy.device.type == "cuda":
        eager = Runner(policy._forward, policy.device, (n,))
        rows = {
            k: v if v.dtype == np.uint8 else v.astype(np.float32)
            for k, v in batch.observations.items()
        }
        rows |= {name: drawn.cpu().numpy() for name, drawn in _draws(policy, n, DRAWN).items()}
        eager_s = seconds(lambda: eager(rows), policy.device, repeats)
        graph_s = seconds(lambda: policy.runner(rows), policy.device, repeats)
        print(
            f"  graph replay {1000 * graph_s:.2f} ms, eager {1000 * eager_s:.2f} ms: "
            f"{eager_s / graph_s:.2f}x"
        )


def _break_down(policy: Any, batch: Batch, repeats: int) -> None:
    """Print where ``act`` spends its time on CUDA, part by part."""
    n = len(batch.queries)
    size = policy.runner.size_for(n)
    graph = next(g for (rows, *_), g in policy.runner.graphs.items() if rows == size)
    rows = {
        k: v if v.dtype == np.uint8 else v.astype(np.float32) for k, v in batch.observations.items()
    }
    host = seconds(lambda: graph._stage(rows, n), torch.device("cpu"), repeats)
    staged = seconds(lambda: graph._stage(rows, n), policy.device, repeats)
    replay = seconds(graph.graph.replay, policy.device, repeats)
    print(
        f"  staging {1000 * host:.2f} ms (with the transfer {1000 * staged:.2f}), "
        f"normalisation and network {1000 * replay:.2f} ms"
    )


def main() -> None:
    flags = dict(word.removeprefix("--").split("=") for word in sys.argv[1:])
    device = flags.get("device", "cuda" if torch.cuda.is_available() else "cpu")
    on_cpu = device == "cpu"
    size = int(flags.get("size", 240 if on_cpu else 480))
    machine = {
        "commit": git_commit(),
        "cores": usable_cores(),
        "device": torch.cuda.get_device_name() if not on_cpu else "cpu",
        "torch": torch.__version__,
        "platform": platform.platform(),
        "size": size,
    }
    print(json.dumps(machine))
    if on_cpu:
        torch.set_num_threads(1)
    sizes = [int(flags["batch"])] if "batch" in flags else ([1] if on_cpu else [1, 16])
    repeats = 7 if on_cpu else 50
    for n in sizes:
        policy, benchmark = make("act", device, size)
        report(f"ACT {size}x{size}", policy, benchmark, n, repeats)
        policy, benchmark = make(
            "diffusion", device, size, noise_scheduler_type="DDIM", num_inference_steps=10,
            crop_shape=[size * 7 // 8, size * 7 // 8],
        )  # fmt: skip
        report(f"Diffusion {size}x{size}, DDIM 10", policy, benchmark, n, max(3, repeats // 5))


if __name__ == "__main__":
    main()
