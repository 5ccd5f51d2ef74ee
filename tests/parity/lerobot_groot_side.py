"""Runs under LeRobot's own Python, with transformers and diffusers: GR00T.

    python lerobot_groot_side.py FOLDER BASE

FOLDER/ours/CASE are tiny checkpoints on the base model BASE: it loads each, steps and all, and
writes the chunks of the goldens' observations, one by one, into FOLDER/CASE.safetensors. Then it
saves what it loaded as FOLDER/theirs/CASE.
"""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "golden"))
import make_groot
from lerobot.configs import PreTrainedConfig
from lerobot.policies.factory import get_policy_class, make_pre_post_processors
from safetensors.torch import save_file


def main() -> None:
    torch.set_num_threads(1)
    folder, base = Path(sys.argv[1]), Path(sys.argv[2])
    backbone = str(base.parent / "backbone")
    for ours in sorted((folder / "ours").iterdir()):
        config = PreTrainedConfig.from_pretrained(ours)
        policy = get_policy_class(config.type).from_pretrained(ours, strict=True).eval()
        before, after = make_pre_post_processors(config, pretrained_path=str(ours))
        assert before.steps[3].model_name == backbone
        rows = range(len(make_groot.WORDS))
        found = [make_groot.chunk_of(policy, before, after, slice(n, n + 1)) for n in rows]
        save_file({"chunk": torch.cat(found)}, folder / f"{ours.name}.safetensors")
        theirs = folder / "theirs" / ours.name
        policy.save_pretrained(theirs)
        before.save_pretrained(theirs)
        after.save_pretrained(theirs)


if __name__ == "__main__":
    main()
