"""Runs under LeRobot's own Python (0.6.1): makes the tiny goldens of VQ-BeT and TD-MPC.

    python tests/golden/make_vq_td.py tests/golden/data

Writes a folder for each case of tests/golden/vq_td_cases.py: LeRobot's config.json and processors
as it saves them, and outputs.safetensors: actions of a few queries in robot units, losses of five
steps of training in both phases, and every tensor after them in five numbers. What LeRobot draws
is replaced by the draws of the case.
"""

import sys
from pathlib import Path

import numpy as np
import torch
import vq_td_cases as cases
from lerobot.configs import FeatureType, PolicyFeature
from lerobot.policies.factory import get_policy_class, make_policy_config
from lerobot.processor import make_default_pre_post_processors
from safetensors.torch import save_file
from torchvision.transforms import RandomCrop


def gumbel(uniform):
    return -torch.log(-torch.log(uniform.clamp(min=torch.finfo(torch.float32).tiny)))


class Given:
    """torch's and numpy's generators, which hand out the draws of a case instead."""

    def __init__(self, name, what):
        self.draws, self.rounds, self.drawn, self.pi = cases.draws(name, what), 0, 0, 0
        self.horizon, self.own = cases.CASES[name].get("horizon"), "own" in self.draws
        self.judged = 0

    def multinomial(self, probabilities, num_samples, **_):
        key = "codes" if "codes" in self.draws else "choice"
        noise = self.draws[key]
        if key == "codes" and len(probabilities) != noise[..., 0].numel():  # one layer at a time
            noise = noise[:, :, self.drawn % 2]
            self.drawn += 1
        noise = gumbel(noise.reshape(probabilities.shape))
        return (probabilities.log() + noise).argmax(-1, keepdim=True)

    def randn_like(self, like, **_):  # [plans, B, A]: own plans' steps, then each round's last
        if self.pi < self.horizon and self.draws["own"].shape[2]:
            found = self.draws["own"][:, self.pi]
        else:
            found = self.draws["last"][:, self.rounds - 1]
        self.pi += 1
        return found.transpose(0, 1).reshape(like.shape)

    def randn(self, *shape, **_):
        self.rounds += 1
        return self.draws["tried"][:, self.rounds - 1].permute(1, 2, 0, 3).reshape(shape)

    def randint(self, low, high, size, **named):
        if len(size) == 1:  # which estimators judge, for all rows alike
            return (self.draws["judges"][0, self.rounds - 1] * high).long()
        found = (self.draws["shift"].transpose(0, 1) * high).floor()  # (steps, rows)
        return found.flip(-1).reshape(size).to(named["dtype"])

    def choice(self, n, size):
        self.judged += 1
        return (self.draws["judges"][0, self.judged - 1] * n).long().tolist()

    def crop(self, image, output_size):
        height, width = image.shape[-2:]
        room = torch.tensor([height - output_size[0] + 1, width - output_size[1] + 1])
        top, left = (self.draws["crop"][0] * room).long().tolist()
        return top, left, *output_size

    def __enter__(self):
        self.before = [
            (torch, n, getattr(torch, n)) for n in ("multinomial", "randn_like", "randn")
        ]
        self.before += [(torch, "randint", torch.randint), (np.random, "choice", np.random.choice)]
        self.before += [(RandomCrop, "get_params", RandomCrop.get_params)]
        for place, attribute, _ in self.before:
            replaced = {"get_params": "crop"}.get(attribute, attribute)
            setattr(place, attribute, getattr(self, replaced))

    def __exit__(self, *_):
        for place, attribute, value in self.before:
            setattr(place, attribute, value)


def as_lerobot(batch):
    return {k: v.float() / 255 if v.dtype == torch.uint8 else v for k, v in batch.items()}


def drawn(name):
    """Return a case's config, a policy as LeRobot draws it, and what is before and after it."""
    kinds = {cases.IMAGE: "VISUAL", cases.STATE: "STATE", cases.WORLD: "ENV", "action": "ACTION"}
    features = {
        k: PolicyFeature(FeatureType[kinds[k]], shape) for k, shape in cases.shapes(name).items()
    }
    fields = dict(cases.CASES[name])
    config = make_policy_config(
        fields.pop("type"),
        input_features={k: v for k, v in features.items() if k != "action"},
        output_features={"action": features["action"]},
        device="cpu",
        push_to_hub=False,
        **fields,
    )
    policy = get_policy_class(config.type)(config)
    return config, policy, *make_default_pre_post_processors(config, cases.stats(name))


def made(name):
    """Return the same with the case's weights."""
    config, policy, pre, post = drawn(name)
    with torch.no_grad():
        cases.fill(policy.state_dict())
    return config, policy, pre, post


def played(name, config, policy, pre, post):
    """Return the actions of the first queries."""
    if config.type == "vqbet":
        policy.vqbet.action_head.vqvae_model.discretized.fill_(True)
        per_query = config.action_chunk_size
    else:
        per_query = max(config.n_action_repeats, config.n_action_steps)
    policy.eval().reset()
    actions = []
    for step in range(cases.QUERIES * per_query):
        seen = as_lerobot(cases.observation(name, step))
        with Given(name, f"query {step // per_query}"), torch.inference_mode():
            actions.append(post(policy.select_action(pre(seen))))
    return {"actions": torch.stack(actions, 1)}


def trained(name, config, policy, pre, _):
    """Return losses, their parts, and every tensor after five steps of training."""
    optimizer = config.get_optimizer_preset().build(policy.get_optim_params())
    schedule = config.get_scheduler_preset()
    schedule = None if schedule is None else schedule.build(optimizer, cases.STEPS)
    found = {}
    for step in range(cases.STEPS):
        batch = as_lerobot(cases.training_batch(name, step)) | {"index": torch.arange(cases.B)}
        policy.train()
        with Given(name, f"step {step}"):
            loss, parts = policy.forward(pre(batch))
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), 10.0)
        optimizer.step()
        optimizer.zero_grad()
        if schedule is not None:
            schedule.step()
        if hasattr(policy, "update"):
            policy.update()
        found[f"loss {step}"], found[f"norm {step}"] = loss.detach().reshape(()), norm
        numbers = {k: v for k, v in parts.items() if isinstance(v, int | float)}
        found |= {f"{k} {step}": torch.tensor(float(v)) for k, v in numbers.items()}
    return found | {f"after {k}": cases.summary(v) for k, v in policy.state_dict().items()}


def true_size(kind):
    """Return every tensor of a policy as LeRobot makes it by default, and the optimiser's order."""
    image = PolicyFeature(FeatureType.VISUAL, (3, 96, 96))
    seen = {cases.STATE: PolicyFeature(FeatureType.STATE, (4,)), cases.IMAGE: image}
    action = {"action": PolicyFeature(FeatureType.ACTION, (4,))}
    plain = {"pretrained_backbone_weights": None} if kind == "vqbet" else {}
    config = make_policy_config(
        kind, input_features=seen, output_features=action, device="cpu", push_to_hub=False, **plain
    )
    policy = get_policy_class(kind)(config)
    yield f"#### {kind}"
    for name, tensor in policy.state_dict().items():
        yield f"{name} {list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
    names = {id(parameter): name for name, parameter in policy.named_parameters()}
    yield f"#### order of {kind}"
    groups = policy.get_optim_params()
    groups = groups if isinstance(groups, list) else [{"params": list(groups)}]
    yield from (f"{i} {names[id(p)]}" for i, group in enumerate(groups) for p in group["params"])


def main(out: Path) -> None:
    torch.set_num_threads(1)
    lines = [*true_size("vqbet"), *true_size("tdmpc")]
    (out / "keys_vq_td_true.txt").write_text("\n".join(lines) + "\n")
    for name in cases.CASES:
        folder = out / name
        config, _, pre, post = made(name)
        config.save_pretrained(folder)
        pre.save_pretrained(folder)
        post.save_pretrained(folder)
        save_file(
            played(name, *made(name)) | trained(name, *made(name)), folder / "outputs.safetensors"
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
