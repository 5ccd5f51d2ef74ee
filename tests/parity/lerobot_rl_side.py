"""Runs under LeRobot's own Python: its Gaussian actor and its reward classifier.

    python lerobot_rl_side.py FOLDER

FOLDER/ours/CASE are checkpoints, which it loads strictly. FOLDER/theirs/CASE holds config.json and
stats.json: it draws the weights and saves the checkpoint as LeRobot does. FOLDER/CASE.safetensors
holds raw observations. Beside each checkpoint it writes CASE.safetensors with its outputs.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional


def same(x, kernel, stride, value=0.0):
    sides = []
    for n in (x.shape[-1], x.shape[-2]):
        total = max(0, ((n + stride - 1) // stride - 1) * stride + kernel - n)
        sides += [total // 2, total - total // 2]
    return functional.pad(x, sides, value=value)


class Conv(nn.Module):
    def __init__(self, before, after, kernel, stride):
        super().__init__()
        self.conv = nn.Conv2d(before, after, kernel, stride, bias=False)
        self.kernel, self.stride = kernel, stride

    def forward(self, x):
        return self.conv(same(x, self.kernel, self.stride))


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.group_norm = nn.GroupNorm(4, width)

    def forward(self, x):
        return self.group_norm(x)


class Block(nn.Module):
    def __init__(self, before, after, stride):
        super().__init__()
        self.conv1, self.norm1 = Conv(before, after, 3, stride), Norm(after)
        self.conv2, self.norm2 = Conv(after, after, 3, 1), Norm(after)
        if before != after:
            self.shortcut = nn.Sequential(Conv(before, after, 1, stride), Norm(after))

    def forward(self, x):
        y = self.norm2(self.conv2(self.norm1(self.conv1(x)).relu()))
        return (y + (self.shortcut(x) if hasattr(self, "shortcut") else x)).relu()


class ResNet10(nn.Module):
    """A stand-in for the published encoder, whose code is on the Hub, at the width of a folder."""

    def __init__(self, sizes):
        super().__init__()
        self.config = SimpleNamespace(hidden_sizes=sizes["hidden_sizes"])
        first, widths = sizes["embedding_size"], sizes["hidden_sizes"]
        self.embedder = nn.Sequential(nn.Conv2d(3, first, 7, 2, 3, bias=False), Norm(first))
        self.encoder = nn.Module()
        pairs = zip([first, *widths], widths, (1, 2, 2, 2), strict=False)
        self.encoder.stages = nn.Sequential(*(Block(*each) for each in pairs))

    def forward(self, x):
        x = same(self.embedder(x).relu(), 3, 2, value=float("-inf"))
        x = self.encoder.stages(functional.max_pool2d(x, 3, 2))
        return SimpleNamespace(last_hidden_state=x)


def find_encoder(name, **_):
    return ResNet10(json.loads((Path(name) / "config.json").read_text()))


transformers.AutoModel.from_pretrained = find_encoder
from lerobot.configs import PreTrainedConfig  # noqa: E402
from lerobot.configs.rewards import RewardModelConfig  # noqa: E402
from lerobot.policies.factory import get_policy_class, make_pre_post_processors  # noqa: E402
from lerobot.processor import PolicyProcessorPipeline  # noqa: E402
from lerobot.rewards.classifier.modeling_classifier import Classifier  # noqa: E402
from lerobot.rewards.classifier.processor_classifier import make_classifier_processor  # noqa: E402


def kind_of(folder):
    return json.loads((folder / "config.json").read_text())["type"]


def draw(folder):
    stats = json.loads((folder / "stats.json").read_text())
    stats = {
        key: {
            name: torch.tensor(v)[:, None, None] if "images" in key else torch.tensor(v)
            for name, v in each.items()
        }
        for key, each in stats.items()
    }
    if kind_of(folder) == "gaussian_actor":
        config = PreTrainedConfig.from_pretrained(folder)
        parts = (
            get_policy_class(config.type)(config),
            *make_pre_post_processors(config, dataset_stats=stats),
        )
    else:
        config = RewardModelConfig.from_pretrained(folder)
        parts = Classifier(config), *make_classifier_processor(config, stats)
    for part in parts:
        part.save_pretrained(folder)


def outputs(folder, raw):
    if kind_of(folder) == "gaussian_actor":
        policy = get_policy_class("gaussian_actor").from_pretrained(folder, strict=True).eval()
        seen = PolicyProcessorPipeline.from_pretrained(folder, "policy_preprocessor.json")(raw)
        seen = {key: seen[key] for key in policy.config.input_features}
        held = {}
        policy.actor.std_layer.register_forward_hook(
            lambda module, args, result: held.update(log_std=result)
        )
        with torch.no_grad():
            held["mean"] = policy(seen)["action_mean"]
            if policy.discrete_critic is not None:
                held["gripper"] = policy.discrete_critic(seen)
        return held
    model = Classifier.from_pretrained(folder, strict=True)
    seen = PolicyProcessorPipeline.from_pretrained(folder, "classifier_preprocessor.json")(raw)
    with torch.no_grad():
        found = model.predict([seen[key] for key in model.config.input_features])
        return {"logits": found.logits, "reward": model.predict_reward(seen)}


def main(folder):
    torch.set_num_threads(1)
    torch.manual_seed(11)
    for place in sorted((folder / "theirs").iterdir()):
        draw(place)
    for file in sorted(folder.glob("*.safetensors")):
        for whose in ("ours", "theirs"):
            place = folder / whose / file.stem
            found = outputs(place, load_file(file))
            save_file({key: v.contiguous() for key, v in found.items()}, f"{place}.safetensors")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
