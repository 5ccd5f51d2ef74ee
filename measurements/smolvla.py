"""SmolVLA of true size with random weights, on a GPU host: chunks, and Meta-World as a whole.

    python measurements/smolvla.py chunks [--batches=1,8,16 --dtype=float32 --lerobot=FOLDER
        --compile]
    PROCTOR_BENCH_WORKERS=14 python measurements/smolvla.py mt50 [--episodes=2 --every=50
        --strict --draw_slots=none,3 --shadow_map=4096]

``chunks``: milliseconds for a batch of observations (one 480x480 picture each) to become chunks, as
CUDA graphs, eager, and by LeRobot's own module with the same weights (smolvla_peer.py says what
FOLDER holds), whose inputs lie on the GPU already. ``mt50``: as gpu_host.py, and what is left of
drawing and of the network when both go on at once. ``--tiny`` is a small model, to try the script
where there is no GPU. Nothing is downloaded: the tokenizer is made up.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from command import say
from drawing import Scenes, drawn_together
from gpu_host import Case, idle_batch_s, in_words, one_run, say_limit
from gpu_limit import limit_of
from policy import batch_for, make, seconds

from proctor.benchmarks.metaworld.tasks import TASKS
from proctor.features import Array
from proctor.machine.system import git_commit, usable_cores
from proctor.policies.runtime.numerics import numerics_of
from proctor.policies.runtime.runner import Runner

_TINY_VLM = {
    "model_type": "smolvlm",
    "scale_factor": 2,
    "text_config": {
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "vocab_size": 64,
    },
    "vision_config": {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "image_size": 64,
        "patch_size": 16,
    },
}
_TINY = {"num_vlm_layers": 4, "resize_imgs_with_padding": [64, 64]}


def make_vlm(folder: Path) -> None:
    """Write a tokenizer that tells words from each other by nothing, and a small model's sizes."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "<pad>": 1}, unk_token="<unk>"))  # noqa: S106
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"pad_token": "<pad>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps(_TINY_VLM))


@dataclass(frozen=True)
class SmolVlaCase(Case):
    """What is evaluated."""

    folder: str = ""
    tiny: bool = False
    compile: bool = False
    shadow_map: int = 4096

    @property
    def flags(self) -> list[str]:
        """The words of ``proctor eval``."""
        return [*super().flags, f"--env.shadow_map={self.shadow_map}"]

    @property
    def fields(self) -> dict[str, Any]:
        """The policy's own settings."""
        fields: dict[str, Any] = {
            "n_action_steps": self.every,
            "dtype": self.dtype,
            "tokenizer": self.folder,
            "compile": self.compile,
        }
        return fields | ({**_TINY, "vlm_model_name": self.folder} if self.tiny else {})


def rows_of(policy: Any, batch: Any) -> dict[str, Array]:
    """Return what ``act`` hands to the device for a batch."""
    kept: dict[str, Array] = {}
    runner = policy.runner

    def keeping(rows: dict[str, Array]) -> Any:
        kept.update(rows)
        return runner(rows)

    policy.runner = keeping
    policy.act(batch)
    policy.runner = runner
    return kept


def inputs_of(policy: Any, rows: dict[str, Array]) -> tuple[dict[str, Any], Any]:
    """Return what the network is given for ``rows``: inputs and noise, on its device."""
    kept: dict[str, Any] = {}
    network = policy.network
    original = network.chunk

    def keeping(inputs: Any, draws: Any) -> Any:
        kept.update(inputs=inputs, noise=draws["noise"])
        return torch.zeros(1)

    network.chunk = keeping
    with torch.inference_mode():
        policy._forward({k: torch.tensor(v, device=policy.device) for k, v in rows.items()})
    network.chunk = original
    return kept["inputs"], kept["noise"]


def chunks(case: SmolVlaCase, sizes: list[int], peer: Path | None) -> None:
    """Print what batches take."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    policy, benchmark = make("smolvla", device, 480, **case.fields)
    repeats = 30 if device == "cuda" else 3
    theirs = None
    if peer is not None and case.dtype != "float32":
        raise SystemExit("--lerobot: its module is compared in float32")
    if peer is not None:
        from smolvla_peer import chunk_of

        scratch = Path(case.folder) / "sizes"
        scratch.mkdir()
        theirs = chunk_of(policy.network, peer, scratch)
    weights = sum(p.numel() for p in policy.network.parameters())
    say("weights", f"{weights / 1e6:.0f} M")
    for n in sizes:
        measure(policy, batch_for(policy, benchmark, n), theirs, repeats)
    if device == "cuda":
        say("GPU memory at most", f"{torch.cuda.max_memory_allocated() / 2**30:.2f} GiB")


def measure(policy: Any, batch: Any, theirs: Any, repeats: int) -> None:
    """Print what one batch takes."""
    n = len(batch.queries)
    rows = rows_of(policy, batch)
    eager = Runner(policy._forward, policy.device, (n,))
    act_s = seconds(lambda: policy.act(batch), policy.device, repeats)
    ours_s = seconds(lambda: policy.runner(rows), policy.device, repeats)
    eager_s = seconds(lambda: eager(rows), policy.device, repeats)
    say(f"batch {n}: act, all that the engine waits for", f"{1000 * act_s:.2f} ms")
    say("  transfers and network, as a graph", f"{1000 * ours_s:.2f} ms")
    say("  the same, eager", f"{1000 * eager_s:.2f} ms", f"{eager_s / ours_s:.2f}x")
    if theirs is not None:
        compare(policy, rows, theirs, ours_s, repeats)


def compare(policy: Any, rows: dict[str, Array], theirs: Any, ours_s: float, repeats: int) -> None:
    """Print what LeRobot's module takes for ``rows``, and how far its chunk is from ours."""
    inputs, noise = inputs_of(policy, rows)
    with numerics_of(policy.device):
        theirs_s = seconds(lambda: theirs(inputs, noise), policy.device, repeats)
        with torch.inference_mode():
            apart = (theirs(inputs, noise) - policy.network.chunk(inputs, {"noise": noise})).abs()
    say("  LeRobot's module", f"{1000 * theirs_s:.2f} ms", f"{theirs_s / ours_s:.2f}x")
    say("  largest difference of its chunk from ours", f"{apart.max().item():.1e}")


def mt50(case: SmolVlaCase, bounds: list[int | None]) -> None:
    """Evaluate, and print the fraction of the limit."""
    workers = int(os.environ["PROCTOR_BENCH_WORKERS"])
    scenes = Scenes(tuple(row.name for row in TASKS), 480, case.shadow_map)
    best = drawn_together(scenes, workers).best
    say(f"rendering alone, 480x480, {workers} processes", f"{best:.0f} frames/s")
    runs = {slots: one_run(case, workers, slots) for slots in bounds}
    idle = idle_batch_s(case, workers)
    for slots, ran in runs.items():
        limit = limit_of(ran.seen, best, idle)
        say_limit(in_words(slots), limit, ran.wall_s)
        both_s = limit.drawing_s + limit.inference_s
        say("  drawing and inference in turns, of the same", f"{both_s / limit.span_s:.2f}")
    at_once(case, scenes, workers, best)


def at_once(case: SmolVlaCase, scenes: Scenes, workers: int, best: float) -> None:
    """Print what drawing and the network reach of what each reaches alone, while both go on."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    policy, benchmark = make("smolvla", device, 480, **case.fields)
    batch, ends, over = batch_for(policy, benchmark, 8), list[float](), threading.Event()
    policy.act(batch)
    alone_s = seconds(lambda: policy.act(batch), policy.device, 10 if device == "cuda" else 1)

    def think() -> None:
        while not over.is_set():
            policy.act(batch)
            ends.append(time.time())

    thinking = threading.Thread(target=think)
    thinking.start()
    drawn = drawn_together(scenes, workers)
    over.set()
    thinking.join()
    during = [end for end in ends if drawn.begun <= end <= drawn.over]
    thought = len(during) * alone_s / (drawn.over - drawn.begun)
    say("drawing while the network computes, of alone", f"{drawn.best / best:.2f}")
    say("the network while all draw, of alone", f"{thought:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("chunks", "mt50"))
    parser.add_argument("--batches", default="1,8,16")
    parser.add_argument("--lerobot", type=Path, default=None)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--tasks", default="mt50")
    parser.add_argument("--episodes", type=int, default=2)
    parser.add_argument("--every", type=int, default=50, help="n_action_steps")
    parser.add_argument("--draw_slots", default="none", help="bounds to try, as none,3")
    parser.add_argument("--shadow_map", type=int, default=4096)
    parser.add_argument("--strict", action="store_true", help="as --eval.strict")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    asked = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    if not on_gpu:
        torch.set_num_threads(1)
    machine = {
        "commit": git_commit(),
        "cores": usable_cores(),
        "device": torch.cuda.get_device_name() if on_gpu else "cpu",
        "torch": torch.__version__,
        "platform": platform.platform(),
        "asked": {name: str(value) for name, value in vars(asked).items()},
    }
    print(json.dumps(machine), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        make_vlm(Path(folder))
        case = SmolVlaCase(
            policy="smolvla",
            tasks=asked.tasks,
            episodes=asked.episodes,
            every=asked.every,
            dtype=asked.dtype,
            strict=asked.strict,
            shadow_map=asked.shadow_map,
            folder=folder,
            tiny=asked.tiny,
            compile=asked.compile,
        )
        if asked.what == "mt50":
            bounds = [None if n == "none" else int(n) for n in asked.draw_slots.split(",")]
            mt50(case, bounds)
        else:
            chunks(case, [int(n) for n in asked.batches.split(",")], asked.lerobot)


if __name__ == "__main__":
    main()
