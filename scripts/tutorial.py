"""`make tutorial`: record, train, evaluate and compare a policy.

States only, no images: a few minutes on two cores, no GPU, only packages are downloaded.
docs/tutorial.md walks through the same commands.
"""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path

from proctor.cli import main
from proctor.runs.folder import make_new_folder

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
    examined, expert = f"{folder}/examined", f"{folder}/expert"
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
         "--eval.n_episodes=20", f"--output_dir={examined}"],
        ["eval", "--policy.type=expert", *WORLD, "--eval.n_episodes=20",
         f"--output_dir={expert}"],
        ["compare", expert, examined],
    ]  # fmt: skip


def run() -> int:
    """Run the commands one after the other; stop at the first that fails."""
    folder = make_new_folder(Path("outputs", "tutorial", time.strftime("%Y-%m-%d_%H-%M-%S")))
    began = time.monotonic()
    for words in commands(folder):
        print(f"\n$ proctor {shlex.join(words)}", flush=True)
        code = main(words)
        if code:
            return code
    print(f"\nfrom nothing to a scored policy in {time.monotonic() - began:.0f} s")
    print(f"look at everything: proctor view {folder}, proctor data view {folder}/demos")
    return 0


if __name__ == "__main__":
    sys.exit(run())
