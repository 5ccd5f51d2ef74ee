"""`make tutorial`: record, train, evaluate and compare a policy.

States only, no images: a few minutes on two cores, no GPU, only packages are downloaded.
docs/tutorials/record_train_evaluate.md walks through the same commands.

`python scripts/tutorial.py --interrupt` records and trains, and trains once more with Ctrl-C in the
middle. The resumed training must end with the same bits.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
import time
from pathlib import Path

from proctor.cli import main
from proctor.errors import EXIT_INTERRUPTED
from proctor.runs.folder import make_new_folder
from proctor.system.files import sha256_of

TASKS = "push-v3,drawer-open-v3,button-press-v3"
WORLD = ("--env.type=metaworld", f"--env.task={TASKS}")
SMALL_ACT = (
    *("--policy.type=act", "--policy.chunk_size=10", "--policy.n_action_steps=10"),
    *("--policy.dim_model=128", "--policy.dim_feedforward=256", "--policy.n_heads=4"),
    *("--policy.n_encoder_layers=2", "--policy.use_vae=false", "--policy.dropout=0"),
    "--policy.normalization_mapping={STATE: MEAN_STD, ENV: MEAN_STD, ACTION: MEAN_STD}",
)


def commands(folder: Path) -> list[list[str]]:
    """Return the tutorial's commands, in order."""
    demos, trained = f"--dataset.root={folder}/demos", f"{folder}/act"
    evaluated, expert = f"{folder}/evaluated", f"{folder}/expert"
    return [
        ["record", "--policy.type=expert", *WORLD, "--dataset.repo_id=me/tutorial", demos,
         "--record.n_episodes=50", "--record.images=false", "--record.extra=environment_state",
         "--record.noise=0.3", "--record.noise_share=0.5", "--record.noise_dims=[0,1,2]",
         "--seed=70000"],
        ["train", "--dataset.repo_id=me/tutorial", demos, *SMALL_ACT, "--batch_size=64",
         "--steps=1500", "--num_workers=0", "--optimizer.lr=1e-3",
         "--scheduler.type=diffuser", "--scheduler.name=cosine", "--scheduler.num_warmup_steps=100",
         "--policy.push_to_hub=false", f"--output_dir={trained}"],
        ["eval", f"--policy.path={trained}/checkpoints/last/pretrained_model", *WORLD,
         "--eval.n_episodes=20", f"--output_dir={evaluated}"],
        ["eval", "--policy.type=expert", *WORLD, "--eval.n_episodes=20",
         f"--output_dir={expert}"],
        ["compare", expert, evaluated],
    ]  # fmt: skip


def run() -> int:
    """Run the commands one after the other; stop at the first that fails."""
    folder = make_new_folder(Path("outputs", "tutorial", time.strftime("%Y-%m-%d_%H-%M-%S")))
    began = time.monotonic()
    for words in commands(folder):
        code = say_and_run(words)
        if code:
            return code
    print(f"\nfrom nothing to a scored policy in {time.monotonic() - began:.0f} s")
    print(f"look at everything: proctor view {folder}, proctor data view {folder}/demos")
    return 0


def say_and_run(words: list[str]) -> int:
    """Print a command, run it and return its exit code."""
    print(f"\n$ proctor {shlex.join(words)}", flush=True)
    return main(words)


def run_interrupted() -> int:
    """Record and train; train again with Ctrl-C in the middle, resume it, and compare the bits."""
    folder = make_new_folder(Path("outputs", "tutorial", time.strftime("%Y-%m-%d_%H-%M-%S")))
    record, train = commands(folder)[:2]
    whole, stopped = folder / "act", folder / "act-interrupted"
    interrupted = [*train[:-1], f"--output_dir={stopped}"]
    return (
        say_and_run(record) or say_and_run(train) or resume_and_compare(interrupted, stopped, whole)
    )


def resume_and_compare(train: list[str], stopped: Path, whole: Path) -> int:
    """Interrupt the training ``train`` in ``stopped``, resume it, and compare it with ``whole``.

    Returns 0 if the newest checkpoints of both have the same bits.
    """
    threading.Thread(target=_press_ctrl_c, args=(stopped / "log.jsonl",), daemon=True).start()
    if say_and_run(train) != EXIT_INTERRUPTED:
        print("the training was not interrupted: it was over too soon")
        return 1
    code = say_and_run(["train", "--resume", f"--output_dir={stopped}"])
    if code:
        return code
    hashes = [_hashes(run / "checkpoints" / "last") for run in (stopped, whole)]
    if hashes[0] != hashes[1]:
        print(f"the checkpoints in {stopped} and {whole} differ")
        return 1
    print(f"\nafter the interruption: the same bits in all {len(hashes[0])} files as without it")
    return 0


def _press_ctrl_c(log: Path) -> None:
    """Send SIGINT to this process once the training has logged its first steps."""
    while not log.exists():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)


def _hashes(checkpoint: Path) -> dict[str, str]:
    """Return the hash of every file, except of the settings, which name their folder."""
    return {
        str(path.relative_to(checkpoint)): sha256_of(path)
        for path in sorted(checkpoint.rglob("*"))
        if path.is_file() and path.name != "train_config.json"
    }


if __name__ == "__main__":
    sys.exit(run_interrupted() if "--interrupt" in sys.argv[1:] else run())
