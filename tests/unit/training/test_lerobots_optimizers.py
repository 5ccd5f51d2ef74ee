"""xvla-adamw and multi_adam: the weights after two steps, and the files, are LeRobot's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.refusals import refuses

from .builders import RUN, SMALL_ACT, files_of, words

torch = pytest.importorskip("torch")

from safetensors.torch import load_file  # noqa: E402

from proctor.cli import main  # noqa: E402
from proctor.errors import UsageError  # noqa: E402
from proctor.policies.act.config import ActConfig  # noqa: E402
from proctor.policies.lerobot.config.presets import OptimizerSettings, ScheduleSettings  # noqa: E402
from proctor.policies.runtime.network import Network  # noqa: E402
from proctor.training.checkpoints.state import Batching, TrainerState, read_state, write_state  # noqa: E402
from proctor.training.optim.optimizers import make_optimizer, multiplier, param_groups, resolve  # noqa: E402

GOLDEN = json.loads((Path(__file__).parents[2] / "golden/data/optimizers.json").read_text())
KINDS = ("xvla-adamw", "multi_adam")


class Three(Network):
    """A network of three parts with the golden file's names, shapes and values."""

    def __init__(self) -> None:
        super().__init__()
        for name, shape in GOLDEN["shapes"].items():
            part, _, field = name.partition(".")
            if not hasattr(self, part):
                self.add_module(part, torch.nn.Module())
            numbers = torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape) / 10
            getattr(self, part).register_parameter(field, torch.nn.Parameter(numbers))

    def chunk(self, inputs, draws):
        raise NotImplementedError

    def loss(self, batch, draws):
        terms = [(k + 1) * (p**2).sum() for k, p in enumerate(self.parameters())]
        return sum(terms), {}

    def compiled_modules(self):
        return []


def begun(kind: str, network: Network) -> TrainerState:
    settings = OptimizerSettings(type=kind, **GOLDEN[kind]["settings"])
    optimization = resolve(None, settings, ScheduleSettings())
    optimizer = make_optimizer(optimization, param_groups(optimization, network), fused=False)
    return TrainerState(optimizer, None, None, optimization.separate)


def stepped(trainer_state: TrainerState, network: Network, times: int = 1) -> None:
    for _ in range(times):
        trainer_state.optimizer.zero_grad()
        network.loss({}, {})[0].backward()
        trainer_state.optimizer.step()


def written(folder: Path) -> dict:
    found = {}
    for file in sorted(folder.rglob("optimizer_*")):
        text = file.suffix == ".json"
        held = json.loads(file.read_text()) if text else load_file(file)
        found[str(file.relative_to(folder))] = held
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_weights_and_files_are_lerobots_and_a_resumed_run_goes_on_alike(kind, tmp_path):
    network, golden = Three(), GOLDEN[kind]
    trainer_state = begun(kind, network)
    stepped(trainer_state, network, 2)
    for name, expected in golden["weights"].items():
        torch.testing.assert_close(network.get_parameter(name), torch.tensor(expected))
    write_state(tmp_path / "state", trainer_state.snapshot(), {"any": torch.zeros(1)}, Batching(1))
    found = written(tmp_path / "state")
    assert found.keys() == golden["files"].keys()
    for name, expected in golden["files"].items():
        if name.endswith(".json"):
            assert found[name] == expected
        else:
            assert found[name].keys() == expected.keys()
            for key, values in expected.items():
                torch.testing.assert_close(found[name][key], torch.tensor(values))
    again = Three()
    again.load_state_dict(network.state_dict())
    resumed = begun(kind, again)
    read_state(tmp_path / "state", resumed)
    stepped(trainer_state, network)
    stepped(resumed, again)
    assert all(
        torch.equal(*pair) for pair in zip(again.parameters(), network.parameters(), strict=True)
    )


def test_the_annealing_schedule_is_lerobots():
    golden = GOLDEN["cosine_annealing_with_warmup warm 50 total 500"]
    at = multiplier({"type": "cosine_annealing_with_warmup", "num_warmup_steps": 50}, 500)
    assert [at(i) for i in golden["i"]] == pytest.approx(golden["v"], rel=1e-12, abs=1e-15)


def test_soft_prompts_may_start_at_a_rate_for_their_warm_up():
    settings = OptimizerSettings(type="xvla-adamw", lr=0.01, soft_prompt_warmup_lr_scale=0.02)
    optimization = resolve(None, settings, ScheduleSettings())
    rates = {group["name"]: group["lr"] for group in param_groups(optimization, Three())}
    assert rates == pytest.approx({"vlm": 0.001, "soft_prompts": 0.0002, "other": 0.01})


@pytest.mark.parametrize(
    ("groups", "code", "name"),
    [
        ({"vml": {"lr": 0.1}}, "flag.unknown-choice", "'vlm'"),
        ({"vlm": {"rate": 0.1}}, "flag.unknown", "'rate'"),
    ],
)
def test_a_group_that_cannot_be_is_refused_by_its_name(groups, code, name):
    settings = OptimizerSettings(type="multi_adam", optimizer_groups=groups)
    optimization = resolve(ActConfig().training_preset(), settings, ScheduleSettings())
    with refuses(UsageError, code) as refused:
        param_groups(optimization, Three())
    assert name in str(refused.value)


def test_a_training_with_several_adams_is_exact_when_resumed(numbers, tmp_path):
    adams = {"optimizer.type": "multi_adam", "optimizer.lr": 1e-3, "steps": 4}
    adams |= {"optimizer.optimizer_groups": "{decoder: {lr: 1e-4}}"}
    adams |= {"scheduler.type": "cosine_annealing_with_warmup", "scheduler.num_warmup_steps": 2}
    assert main(["train", *words(numbers, tmp_path / "whole", SMALL_ACT, RUN, adams)]) == 0
    last = tmp_path / "whole/checkpoints/000004"
    assert (last / "training_state/decoder/optimizer_state.safetensors").is_file()
    config = tmp_path / "whole/checkpoints/000002/pretrained_model/train_config.json"
    before = files_of(last)
    assert main(["train", "--resume", f"--config_path={config}"]) == 0
    assert files_of(last) == before
