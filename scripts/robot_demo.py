"""`make robot-demo`: calibrate, record, train and evaluate on the simulated SO-101 arm.

The arm stands behind an emulated servo bus, so the driver's own code runs, bytes and all. Its clock
is virtual: an episode takes as long as the computer needs. States only, no images.
docs/tutorials/robot.md walks through the same commands.
"""

from __future__ import annotations

import shlex
import time
from pathlib import Path

from proctor.cli import main
from proctor.runs.folder import make_new_folder

N_PICKS = N_TRIALS = 50
TASK = "Pick up the cube and put it into the bin."
SMALL_ACT = (
    *("--policy.type=act", "--policy.device=cpu", "--policy.use_vae=false", "--policy.dropout=0"),
    *("--policy.dim_model=128", "--policy.n_heads=4", "--policy.dim_feedforward=512"),
    *("--policy.n_encoder_layers=2", "--policy.chunk_size=10", "--policy.n_action_steps=5"),
    "--policy.normalization_mapping={ENV: MEAN_STD, STATE: MEAN_STD, ACTION: MEAN_STD}",
)
STEPS = 6000
COSINE = (
    *("--optimizer.lr=5e-4", "--scheduler.type=cosine_decay_with_warmup"),
    *("--scheduler.num_warmup_steps=50", f"--scheduler.num_decay_steps={STEPS}"),
    *("--scheduler.peak_lr=5e-4", "--scheduler.decay_lr=2e-5"),
)


def commands(folder: Path) -> list[list[str]]:
    """Return the demo's commands, in order."""
    robot = (
        *("--robot.type=so101_follower", "--robot.port=sim:virtual", "--robot.id=demo"),
        f"--robot.calibration_dir={folder}/calibration",
    )
    picks, trained, trials = f"{folder}/picks", f"{folder}/act", f"{folder}/trials"
    return [
        ["calibrate", *robot],
        ["record", *robot, "--teleop.type=scripted", "--dataset.repo_id=me/picks",
         f"--dataset.root={picks}", f"--dataset.num_episodes={N_PICKS}",
         "--dataset.episode_time_s=10", "--seed=1000", f"--dataset.single_task={TASK}"],
        ["train", "--dataset.repo_id=me/picks", f"--dataset.root={picks}", *SMALL_ACT,
         "--batch_size=64", "--num_workers=0", f"--steps={STEPS}", f"--save_freq={STEPS}",
         *COSINE, "--policy.push_to_hub=false", f"--output_dir={trained}"],
        ["eval", *robot, f"--policy.path={trained}/checkpoints/last/pretrained_model",
         "--policy.device=cpu", f"--eval.n_episodes={N_TRIALS}",
         "--eval.episode_time_s=10", "--seed=5000", f"--output_dir={trials}"],
    ]  # fmt: skip


def run() -> int:
    """Run the commands one after the other; stop at the first that fails."""
    folder = make_new_folder(Path("outputs", "robot-demo", time.strftime("%Y-%m-%d_%H-%M-%S")))
    began = time.monotonic()
    for words in commands(folder):
        print(f"\n$ proctor {shlex.join(words)}", flush=True)
        code = main(words)
        if code:
            return code
    print(f"\nfrom an uncalibrated arm to a scored policy in {time.monotonic() - began:.0f} s")
    print(f"look at everything: proctor view {folder}, proctor data view {folder}/picks")
    return 0


if __name__ == "__main__":
    raise SystemExit(run())
