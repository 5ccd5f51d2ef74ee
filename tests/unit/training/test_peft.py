"""LoRA adapters: frozen weights, exact resume, merged when loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .builders import RUN, SMALL_ACT, SMALL_DIFFUSION, files_of, needs_peft, words

torch = pytest.importorskip("torch")
needs_peft()
pytestmark = pytest.mark.vla  # peft imports transformers, which takes longer than these tests
from safetensors.torch import load_file  # noqa: E402

from proctor.cli import main  # noqa: E402
from proctor.fingerprint import ConfigUse  # noqa: E402
from proctor.policies.lerobot.checkpoint.checkpoint import read_checkpoint  # noqa: E402
from proctor.policies.lerobot.checkpoint.location import CheckpointFolder  # noqa: E402
from proctor.policies.runtime.chunk_policy import LoadedCheckpoint  # noqa: E402
from proctor.training import loop  # noqa: E402
from proctor.training.peft import add_adapter  # noqa: E402

LAST = "checkpoints/last/pretrained_model"
FAMILIES = {
    "act": (SMALL_ACT, "[self_attn,multihead_attn,linear1]", "[action_head]"),
    "diffusion": (
        SMALL_DIFFUSION | {"policy.num_train_timesteps": 5},
        "all-linear",
        "[final_conv]",
    ),
}


class Killed(BaseException):
    """An exception that Proctor never catches, like a SIGKILL."""


def train(*settings: str, expect: int = 0) -> None:
    assert main(["train", *settings]) == expect


def kill_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    untouched = loop.Trainer.update

    def update(self, network):
        if self.trainer_state.step == step:
            raise Killed
        return untouched(self, network)

    monkeypatch.setattr(loop.Trainer, "update", update)


def on(base: Path, family: str = "act", **more: object) -> dict[str, object]:
    """Return the flags of a training with an adapter."""
    _, targets, whole = FAMILIES[family]
    asked = {"policy.path": base, "policy.device": "cpu", "optimizer.lr": 1e-2}
    asked |= {"peft.target_modules": targets, "peft.full_training_modules": whole, "peft.r": 4}
    return asked | more


@pytest.fixture(scope="module")
def bases(numbers, tmp_path_factory):
    """A trained policy of each family, made on demand."""

    class Bases(dict[str, Path]):
        def __missing__(self, family: str) -> Path:
            folder = tmp_path_factory.mktemp("base") / family
            train(*words(numbers, folder, FAMILIES[family][0], RUN, {"steps": 2}))
            self[family] = folder / LAST
            return self[family]

    return Bases()


@pytest.mark.parametrize("family", ["act", pytest.param("diffusion", marks=pytest.mark.slow)])
def test_a_killed_adaptation_ends_with_the_same_bits_and_is_read_as_it_learnt(
    numbers, bases, tmp_path, monkeypatch, family
):
    base, how = bases[family], on(bases[family], family)
    before = files_of(base)
    train(*words(numbers, tmp_path / "whole", RUN, how))
    with monkeypatch.context() as patch:
        kill_at(patch, 5)
        with pytest.raises(Killed):
            train(*words(numbers, tmp_path / "killed", RUN, how))
    train("--resume", f"--output_dir={tmp_path / 'killed'}")
    whole, killed = (tmp_path / name / "checkpoints/000008" for name in ("whole", "killed"))
    assert files_of(killed) == files_of(whole)
    assert files_of(base) == before

    folder = whole / "pretrained_model"
    assert not (folder / "model.safetensors").exists()
    told = json.loads((folder / "adapter_config.json").read_text())
    assert told["base_model_name_or_path"] == str(base.resolve())
    assert (told["r"], told["lora_alpha"], told["inference_mode"]) == (4, 8, True)
    assert json.loads((folder / "config.json").read_text())["use_peft"] is True
    asked = json.loads((folder / "train_config.json").read_text())["peft"]
    assert (asked["r"], asked["method_type"]) == (4, "LORA")

    merged = read_checkpoint(folder).network.eval()
    learnt = as_trained(folder).network.eval()
    inputs = {
        key: torch.randn(3, *((2,) if merged.takes_history else ()), *feature.shape)
        for key, feature in read_checkpoint(folder).config.input_features.items()
    }
    drawn = {name: torch.randn(3, *shape) for name, (_, shape) in merged.draws.items()}
    with torch.no_grad():
        expected, found = learnt.chunk(inputs, drawn), merged.chunk(inputs, drawn)
        plain = read_checkpoint(base).network.eval().chunk(inputs, drawn)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert (found - plain).abs().max() > 1e-3


def as_trained(folder: Path) -> LoadedCheckpoint:
    """Return a policy with peft's layers in its network, as in a resumed training."""
    from proctor.config.builder import build
    from proctor.config.training import TrainConfig

    config = build(TrainConfig, {"policy.path": str(folder), "dataset.repo_id": "a/b"})
    return add_adapter(
        config, read_checkpoint(folder, use=ConfigUse.TRAINING), CheckpointFolder(folder)
    )


@pytest.mark.slow
def test_what_is_saved_is_what_the_library_saves(bases):
    import peft

    from proctor.policies.lerobot.adapter import adapter_names

    parts = read_checkpoint(bases["act"])
    holder = torch.nn.Module()
    holder.model = parts.network
    lora = peft.LoraConfig(r=2, target_modules=["linear1", "self_attn"], modules_to_save=["norm1"])
    model = peft.PeftModel(holder, lora)
    expected = peft.get_peft_model_state_dict(model, save_embedding_layers=False)
    state = parts.network.state_dict()
    found = {name: state[key] for key, name in adapter_names(state, parts.prefix).items()}
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


@pytest.mark.slow
def test_an_adapters_training_goes_on_from_its_own_checkpoint(numbers, bases, tmp_path, capsys):
    train(*words(numbers, tmp_path / "first", RUN, on(bases["act"])))
    path = {"policy.path": tmp_path / "first" / LAST, "policy.device": "cpu"}
    train(*words(numbers, tmp_path / "second", RUN, path))
    folder = tmp_path / "second" / LAST
    told = [
        json.loads((f / "adapter_config.json").read_text()) for f in (path["policy.path"], folder)
    ]
    assert told[0] == told[1]
    one, other = (load_file(f / "adapter_model.safetensors") for f in (path["policy.path"], folder))
    assert any(not torch.equal(one[key], other[key]) for key in one)
    assert json.loads((folder / "train_config.json").read_text())["peft"]["r"] == 4
    capsys.readouterr()
    train(
        *words(numbers, tmp_path / "third", RUN, path, {"peft.target_modules": "[linear1]"}),
        expect=2,
    )
    assert "--peft.*" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"peft.target_modules": "null"}, "--peft.target_modules"),
        ({"peft.target_modules": "[nothing]"}, "['nothing']"),
        ({"peft.target_modules": "[norm1]"}, "Target module LayerNorm"),
        ({"peft.target_modules": "[out_proj]"}, "['out_proj']"),
        ({"peft.init_type": "orthogonal", "peft.r": 3}, "requires the LoRA rank to be even"),
    ],
    ids=str,
)
def test_layers_that_cannot_be_adapted_are_one_line(
    numbers, bases, tmp_path, capsys, changes, told
):
    base = bases["act"]
    capsys.readouterr()  # the first to ask for a base hears it being trained
    train(*words(numbers, tmp_path / "run", RUN, on(base, **changes)), expect=2)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert told in said[0]
    assert "self_attn, linear1, linear2" in said[0]
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_statistics_of_the_base_stay_as_measured_while_an_adapter_learns():
    from proctor.training import peft as ours
    from tests.unit.policies.small_policies import make_parts, small_diffusion

    parts = make_parts(small_diffusion())
    lora = ours._library().LoraConfig(target_modules=["out"])
    ours._insert(parts, lora, empty=False)
    before = {k: v.clone() for k, v in parts.network.state_dict().items() if "running" in k}
    assert before
    parts.network.train()
    parts.network._encoder(0)(torch.rand(4, 3, 64, 64))
    after = parts.network.state_dict()
    assert all(torch.equal(after[key], value) for key, value in before.items())
