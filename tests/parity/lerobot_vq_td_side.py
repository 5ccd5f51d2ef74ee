"""Runs under LeRobot's own Python: VQ-BeT and TD-MPC of the tiny cases, played and trained.

    python lerobot_vq_td_side.py FOLDER

FOLDER/ours/CASE are checkpoints, which it loads; FOLDER/theirs/CASE it makes, drawn by LeRobot and
saved as LeRobot does. Beside each it writes outputs.safetensors, as tests/golden/make_vq_td.py.
"""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "golden"))
import make_vq_td
import vq_td_cases as cases
from lerobot.configs import PreTrainedConfig
from lerobot.policies.factory import get_policy_class
from lerobot.processor import PolicyProcessorPipeline
from lerobot.processor.converters import policy_action_to_transition, transition_to_policy_action
from safetensors.torch import save_file


def loaded(folder):
    config = PreTrainedConfig.from_pretrained(folder)
    policy = get_policy_class(config.type).from_pretrained(folder, strict=True)
    pre = PolicyProcessorPipeline.from_pretrained(folder, "policy_preprocessor.json")
    post = PolicyProcessorPipeline.from_pretrained(
        folder,
        "policy_postprocessor.json",
        to_transition=policy_action_to_transition,
        to_output=transition_to_policy_action,
    )
    return config, policy, pre, post


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(11)
    for name in cases.CASES:
        for part in make_vq_td.drawn(name)[1:]:
            part.save_pretrained(folder / "theirs" / name)
        for whose in ("ours", "theirs"):
            place = folder / whose / name
            found = make_vq_td.played(name, *loaded(place))
            found |= make_vq_td.trained(name, *loaded(place))
            save_file(found, place.with_suffix(".safetensors"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
