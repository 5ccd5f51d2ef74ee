"""The digests of a table of runs, to compare two versions of the code.

    python -m measurements digests table.json           # run all cases and write the table
    python -m measurements digests table.json --against=before.json [--only=fake,pusht]

A refactoring changes no digest. This file imports nothing of Proctor: it starts the command and
reads journals as JSON, so the same file also runs with another commit's Python, as ``PYTHON
measurements/digests.py table.json``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

SMALL = (
    "--policy.dim_model=64 --policy.n_heads=4 --policy.dim_feedforward=128 --policy.chunk_size=20"
)
PICTURES = "--env.observation_height=96 --env.observation_width=96 --env.episode_length=60"
CASES = {
    "fake": "--policy.type=random --policy.n_action_steps=5 --policy.inputs=observation.image "
    "--env.type=fake --env.n_tasks=5 --eval.n_episodes=8",
    "metaworld expert": "--policy.type=expert --env.type=metaworld --env.task=mt50 "
    "--eval.n_episodes=2",
    "pusht random": "--policy.type=random --env.type=pusht --eval.n_episodes=4",
    "aloha random": "--policy.type=random --policy.n_action_steps=10 --env.type=aloha "
    "--env.task=AlohaTransferCube-v0 --eval.n_episodes=2",
    "act fresh": f"--policy.type=act {SMALL} --policy.n_action_steps=20 --env.type=metaworld "
    f"--env.task=reach-v3,push-v3 {PICTURES} --eval.n_episodes=2",
    "diffusion fresh": "--policy.type=diffusion --policy.down_dims=[32,64] "
    "--policy.noise_scheduler_type=DDIM --policy.num_inference_steps=3 --policy.crop_shape=[84,84] "
    f"--env.type=metaworld --env.task=reach-v3 {PICTURES} --eval.n_episodes=2",
    "libero random": "--policy.type=random --policy.n_action_steps=10 --env.type=libero "
    "--env.task=libero_spatial,libero_object,libero_goal,libero_10 --env.task_ids=[0] "
    "--env.episode_length=60 --eval.n_episodes=2",
}


def run(flags: str, folder: Path) -> dict[str, str]:
    """Run one case; return ``suite/task/episode`` -> outcome and digest."""
    command = [sys.executable, "-m", "proctor.cli", "eval", *flags.split()]
    command += ["--video.episodes=0", "--eval.batch_size=2", f"--output_dir={folder}"]
    done = subprocess.run(command, capture_output=True, text=True)  # noqa: S603  our own command
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    lines = (folder / "episodes.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    found = {
        f"{row['suite']}/{row['task_id']}/{row['episode_index']}": f"{row['outcome']} "
        f"{row['steps']} {row['digest']}"
        for row in rows
    }
    return dict(sorted(found.items()))


def main(words: Sequence[str]) -> None:
    """Run the cases, write the table, and compare it with an earlier one."""
    parser = argparse.ArgumentParser(
        prog="python -m measurements digests",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("table", type=Path)
    parser.add_argument("--against", type=Path, help="an earlier table; exit code 1: they differ")
    parser.add_argument("--only", default=",".join(CASES), help="cases, as fake,pusht random")
    options = parser.parse_args(words)
    if unknown := set(options.only.split(",")) - CASES.keys():
        parser.error(f"no case {sorted(unknown)[0]!r} (choose from: {', '.join(CASES)})")
    before = json.loads(options.against.read_text()) if options.against else {}
    table: dict[str, dict[str, str]] = {}
    differ = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in options.only.split(","):
            table[name] = run(CASES[name], Path(folder, name.replace(" ", "-")))
            verdict = f"{len(table[name])} episodes"
            if name in before:
                wrong = [key for key in before[name] if before[name][key] != table[name].get(key)]
                wrong += [key for key in table[name] if key not in before[name]]
                differ += len(wrong)
                verdict += f", {len(wrong)} differ {wrong[:3] or ''}"
            print(f"{name:<18} {verdict}", flush=True)
    options.table.write_text(json.dumps(table, indent=1) + "\n")
    if differ:
        sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
