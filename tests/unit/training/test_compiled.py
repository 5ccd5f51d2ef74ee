"""A compiled network trains like others, also when resumed; a missing compiler is one line."""

from __future__ import annotations

import json
import shutil

import pytest

from .builders import RUN, SMALL_ACT, files_of, words

torch = pytest.importorskip("torch")

from proctor.cli import main  # noqa: E402
from proctor.config.lerobot.training import drop_lerobot_settings  # noqa: E402
from proctor.config.sections.training import CompileSettings  # noqa: E402
from proctor.errors import UsageError  # noqa: E402
from proctor.training.distributed import SINGLE_PROCESS  # noqa: E402
from proctor.training.optim.graph import uses_cuda_graph  # noqa: E402

FEW = {"steps": 2, "save_freq": 1, "log_freq": 1, "policy.dropout": 0.0, "policy.use_vae": "false"}
FAST = {"accelerator.compile.enabled": "true", "accelerator.compile.backend": "eager"}


def losses(run) -> list[float]:
    return [json.loads(line)["loss"] for line in (run / "log.jsonl").open()]


def check_compiled(numbers, tmp_path, how: dict) -> None:
    """Train without the compiler, with it, and with it from the middle on."""
    for name, some in (("plain", {}), ("compiled", how)):
        assert main(["train", *words(numbers, tmp_path / name, SMALL_ACT, RUN, FEW, some)]) == 0
    plain, compiled = (losses(tmp_path / name) for name in ("plain", "compiled"))
    assert compiled == pytest.approx(plain, rel=1e-5)
    last = tmp_path / "compiled/checkpoints/000002"
    before, middle = files_of(last), last.parent / "000001/pretrained_model/train_config.json"
    assert before.keys() == files_of(tmp_path / "plain/checkpoints/000002").keys()
    told = json.loads(middle.read_text())
    assert told["accelerator"]["compile"]["enabled"] is True
    assert main(["train", "--resume", f"--config_path={middle}"]) == 0
    assert files_of(last) == before


def test_a_traced_network_learns_what_the_plain_one_does(numbers, tmp_path):
    check_compiled(numbers, tmp_path, FAST)


@pytest.mark.parametrize("regional", ["true", "false"])
def test_smaller_batches_and_validation_are_not_compiled_again(numbers, tmp_path, regional):
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    whole = {"accelerator.compile.regional": regional, "batch_size": 7}  # of 24 frames
    held_out = {"dataset.eval_split": 0.3, "eval_steps": 2, "steps": 4}
    given = words(numbers, tmp_path / "run", SMALL_ACT, RUN, FEW, FAST, whole, held_out)
    assert main(["train", *given]) == 0
    assert counters["stats"]["unique_graphs"] == (2 if regional == "true" else 1)


def test_compiling_while_frames_are_decoded_changes_nothing(numbers, tmp_path, monkeypatch):
    from proctor.training.loop import Trainer

    compiled: list = []
    monkeypatch.setattr(Trainer, "compile_step", noting(Trainer.compile_step, compiled))
    for kind in ("off", "ram", "device"):
        some = {"dataset.cache": kind, "policy.dropout": 0.1, "steps": 1}
        assert (
            main(["train", *words(numbers, tmp_path / kind, SMALL_ACT, RUN, FEW, FAST, some)]) == 0
        )
    assert len(compiled) == 2
    off, ram, device = (
        files_of(tmp_path / kind / "checkpoints/000001") for kind in ("off", "ram", "device")
    )
    assert off == ram == device


def noting(method, calls: list):
    """Return a method that notes its calls."""

    def noted(self):
        calls.append(self)
        method(self)

    return noted


@pytest.mark.parametrize(
    ("mode", "is_recorded"), [("default", True), ("max-autotune", False), (None, True)]
)
def test_a_cuda_graph_records_compiled_steps_unless_torch_records_its_own(mode, is_recorded):
    from proctor.config.training import TrainConfig
    from proctor.policies.act.config import ActConfig

    config = TrainConfig(policy=ActConfig())
    config.accelerator.compile = CompileSettings(enabled=True, mode=mode)
    network = type("Recordable", (), {"loss_supports_cuda_graph": True})()
    given = config, network, torch.device("cuda"), SINGLE_PROCESS
    assert uses_cuda_graph(*given) is is_recorded
    config.accelerator.cuda_graph = True
    if not is_recorded:
        with pytest.raises(UsageError) as refused:
            uses_cuda_graph(*given)
        assert refused.value.code == "flag.conflict"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler")
@pytest.mark.parametrize("regional", ["true", "false"])
def test_a_compiled_network_learns_what_the_plain_one_does(numbers, tmp_path, regional):
    how = {"accelerator.compile.enabled": "true", "accelerator.compile.regional": regional}
    check_compiled(numbers, tmp_path, how)


def test_without_a_compiler_it_is_refused_in_one_line(numbers, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CXX", "no-such-compiler")
    some = {"accelerator.compile.enabled": "true"}
    assert main(["train", *words(numbers, tmp_path / "run", SMALL_ACT, RUN, some)]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert "'no-such-compiler'" in said[0]
    assert not (tmp_path / "run").exists()


def test_what_cannot_be_compiled_ends_the_run_in_one_line(numbers, tmp_path, monkeypatch, capsys):
    from proctor.policies.act.network import DetrEncoder

    def broken(self, *given):
        raise torch._dynamo.exc.Unsupported("a loop\nover something")

    monkeypatch.setattr(DetrEncoder, "forward", broken)
    assert main(["train", *words(numbers, tmp_path / "run", SMALL_ACT, RUN, FEW, FAST)]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("proctor: error: torch.compile failed: over something")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"policy.compile_model": "false", "policy.compile_mode": "max-autotune"}, {}),
        (
            {"policy.compile_model": "true", "policy.compile_mode": "max-autotune"},
            {"accelerator.compile.enabled": "true", "accelerator.compile.mode": "max-autotune"},
        ),
        (
            {"policy.compile_model": False, "accelerator.compile.enabled": True},
            {"accelerator.compile.enabled": True},
        ),
    ],
)
def test_lerobots_flags_of_single_policies_mean_the_same_here(given, expected):
    assert drop_lerobot_settings(given) == expected
