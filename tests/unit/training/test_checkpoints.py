"""Checkpoints: atomic, in LeRobot's files; damaged ones are refused."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from tests.refusals import refuses

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'proctor[torch]'")

from safetensors.torch import load_file  # noqa: E402

from proctor.config.sections.training import EmaSettings  # noqa: E402
from proctor.errors import RunFolderError, UsageError  # noqa: E402
from proctor.policies.act.config import ActConfig  # noqa: E402
from proctor.policies.act.network import Act  # noqa: E402
from proctor.policies.lerobot.config.config import decode_config  # noqa: E402
from proctor.policies.lerobot.config.presets import OptimizerSettings, ScheduleSettings  # noqa: E402
from proctor.training.checkpoints.saving import Checkpoints, checkpoint_of  # noqa: E402
from proctor.training.checkpoints.state import Batching, TrainerState, read_state, write_state  # noqa: E402
from proctor.training.optim.ema import WeightAverage, decay_at  # noqa: E402
from proctor.training.optim.optimizers import make_optimizer, make_scheduler, param_groups, resolve  # noqa: E402
from proctor.training.rng import RngStreams  # noqa: E402

LEROBOT = Path(__file__).parents[2] / "golden/data/checkpoints/act_train_run_meta"
NOTHING = (OptimizerSettings(), ScheduleSettings())
BATCH = Batching(4)
BY_ONE = {"num_processes": 1}  # a name that LeRobot's files had for a while


def note(text: str):
    def write(folder: Path) -> None:
        (folder / "note.txt").write_text(text)

    return write


def test_a_checkpoint_appears_whole_and_last_names_it(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.newest() is None
    checkpoints.save(20, note("a"))
    checkpoints.save(100, note("b"))
    assert [path.name for path in checkpoints.all()] == ["000020", "000100"]
    assert (tmp_path / "last").readlink() == Path("000100")
    assert checkpoints.newest() == (tmp_path / "000100").resolve()
    assert Checkpoints(tmp_path, digits=8).path(7).name == "00000007"


@pytest.mark.parametrize(
    "problem", [OSError(errno.ENOSPC, "No space left on device"), ValueError("ours")]
)
def test_what_could_not_be_written_leaves_the_earlier_ones(tmp_path, problem):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(20, note("a"))

    def breaks(folder: Path) -> None:
        note("half")(folder)
        raise problem

    if isinstance(problem, OSError):
        with refuses(RunFolderError, "disk.write-failed") as refused:
            checkpoints.save(40, breaks)
        assert "step 40" in str(refused.value)
        assert f"{tmp_path}/000020" in str(refused.value)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["000020", "last"]
    else:
        with pytest.raises(ValueError, match="ours"):
            checkpoints.save(40, breaks)
    assert checkpoints.newest().name == "000020"
    checkpoints.tidy()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000020", "last"]


@pytest.mark.parametrize("fails", [1, 2], ids=["once", "from there on"])
def test_a_checkpoint_that_is_complete_is_last_also_on_a_full_disk(tmp_path, monkeypatch, fails):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(20, note("a"))
    real, left = Path.symlink_to, [fails]

    def symlink_to(self: Path, target: str) -> None:
        if left[0]:
            left[0] -= 1
            raise OSError(errno.ENOSPC, "No space left on device")
        real(self, target)

    monkeypatch.setattr(Path, "symlink_to", symlink_to)
    with refuses(RunFolderError, "disk.write-failed") as refused:
        checkpoints.save(40, note("b"))
    assert f"{tmp_path}/000040 is complete" in str(refused.value)
    assert checkpoints.newest() == tmp_path / "000040"
    assert (tmp_path / "last").is_symlink() == (fails == 1)


def test_a_run_that_comes_by_again_replaces_its_checkpoint(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(20, note("old"))
    checkpoints.save(20, note("new"))
    assert (tmp_path / "last/note.txt").read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000020", "last"]


def test_the_newest_are_kept_and_the_named_ones_too(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    for step in (1, 2, 3, 4):
        checkpoints.save(step, note(str(step)))
    checkpoints.keep(2, others=frozenset({1}))
    assert [int(path.name) for path in checkpoints.all()] == [1, 3, 4]


def test_a_config_that_lies_in_no_checkpoint_is_refused(tmp_path):
    file = tmp_path / "pretrained_model/train_config.json"
    with refuses(UsageError, "checkpoint.not-found"):
        checkpoint_of(file)
    (tmp_path / "training_state").mkdir()
    assert checkpoint_of(file) == tmp_path.resolve()


def learning_of(weights, preset, ema=None, steps=100) -> TrainerState:
    optimization = resolve(preset, *NOTHING)
    optimizer = make_optimizer(optimization, [{"params": weights}], fused=False)
    average = None if ema is None else WeightAverage(ema, weights)
    return TrainerState(optimizer, make_scheduler(optimization, optimizer, steps), average)


def test_a_state_is_read_back_to_the_bit(tmp_path):
    from proctor.policies.diffusion.config import DiffusionConfig

    preset = DiffusionConfig(scheduler_warmup_steps=3).training_preset()
    weights = [torch.nn.Parameter(torch.arange(4.0)), torch.nn.Parameter(torch.ones(2, 3))]
    trainer_state = learning_of(weights, preset, EmaSettings(enable=True))
    for _ in range(5):
        for weight in weights:
            weight.grad = weight.detach() / 3 + 1
        trainer_state.optimizer.step()
        trainer_state.scheduler.step()
        trainer_state.average.update(weights)
        trainer_state.step += 1
    write_state(
        tmp_path / "state", trainer_state.snapshot(), RngStreams(1).lerobot_rng_state(5), BATCH
    )
    fresh = learning_of(
        [w.detach().clone().requires_grad_() for w in weights], preset, EmaSettings(enable=True)
    )
    read_state(tmp_path / "state", fresh)
    assert fresh.step == 5
    assert fresh.scheduler.state_dict() == trainer_state.scheduler.state_dict()
    write_state(tmp_path / "again", fresh.snapshot(), RngStreams(1).lerobot_rng_state(5), BATCH)
    for file in (tmp_path / "state").iterdir():
        assert (tmp_path / "again" / file.name).read_bytes() == file.read_bytes(), file.name


def test_more_steps_go_on_at_the_rate_of_the_longer_schedule(tmp_path):
    from proctor.policies.diffusion.config import DiffusionConfig

    preset = DiffusionConfig(scheduler_warmup_steps=0, optimizer_lr=0.1).training_preset()
    done, more = (learning_of([torch.nn.Parameter(torch.ones(2))], preset, steps=n) for n in (4, 8))
    for _ in range(4):
        done.optimizer.step()
        done.scheduler.step()
    assert done.optimizer.param_groups[0]["lr"] == 0.0
    write_state(tmp_path / "state", done.snapshot(), RngStreams(1).lerobot_rng_state(4), BATCH)
    read_state(tmp_path / "state", more)
    assert more.optimizer.param_groups[0]["lr"] == pytest.approx(0.05)  # half of the cosine
    (tmp_path / "state/scheduler_state.json").write_text('{"base_lrs": [1], "last_epoch": "x"}')
    with refuses(UsageError, "checkpoint.invalid-state"):
        read_state(tmp_path / "state", more)


def test_the_files_are_those_of_lerobots_own_run(tmp_path):
    """LeRobot's 4-step ACT run: parameter groups, names and shapes of the RNG state."""
    raw = json.loads((LEROBOT / "pretrained_model/config.json").read_text())
    network = Act(decode_config(raw, ActConfig, "golden"))
    optimization = resolve(network.config.training_preset(), *NOTHING)
    optimizer = make_optimizer(optimization, param_groups(optimization, network), fused=False)
    trainer_state = TrainerState(optimizer, None, None, step=4)
    write_state(
        tmp_path / "state", trainer_state.snapshot(), RngStreams(1000).lerobot_rng_state(4), BATCH
    )
    ours, theirs = tmp_path / "state", LEROBOT / "training_state"
    for name, more in (("optimizer_param_groups.json", None), ("training_step.json", BY_ONE)):
        found, expected = (json.loads((run / name).read_text()) for run in (ours, theirs))
        assert found == (expected if more is None else expected | more)
    shapes = [
        {key: (value.dtype, value.shape) for key, value in load_file(file).items()}
        for file in (ours / "rng_state.safetensors", theirs / "rng_state.safetensors")
    ]
    assert shapes[0] == shapes[1]


def test_generators_that_are_written_are_states_that_can_be_set():
    import random

    import numpy as np

    states = RngStreams(3).lerobot_rng_state(7)
    words = tuple(states["py_rng_state"].tolist())
    random.Random().setstate((states["py_rng_version"].item(), words, None))
    torch.Generator().set_state(states["torch_rng_state"])
    key = states["np_rng_state_values"].numpy().astype(np.uint32)
    np.random.RandomState().set_state(("MT19937", key, states["np_rng_state_index"].item()))
    assert not torch.equal(
        RngStreams(3).lerobot_rng_state(8)["py_rng_state"], states["py_rng_state"]
    )


def test_a_state_of_another_network_is_refused(tmp_path):
    preset = ActConfig().training_preset()
    trainer_state = learning_of([torch.nn.Parameter(torch.ones(2))], preset)
    trainer_state.optimizer.param_groups[0]["params"][0].grad = torch.ones(2)
    trainer_state.optimizer.step()
    write_state(
        tmp_path / "state", trainer_state.snapshot(), RngStreams(1).lerobot_rng_state(1), BATCH
    )
    more = [torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))]
    with refuses(UsageError, "checkpoint.shape-mismatch"):
        read_state(tmp_path / "state", learning_of(more, preset))
    with refuses(UsageError, "checkpoint.shape-mismatch"):
        read_state(tmp_path / "state", learning_of([torch.nn.Parameter(torch.ones(3))], preset))


@pytest.mark.parametrize("name", ["training_step.json", "optimizer_param_groups.json"])
@pytest.mark.parametrize("text", ["", "[", '{"step": -1}', '{"step": "x"}', "null"])
def test_a_damaged_state_is_one_line(tmp_path, name, text):
    trainer_state = learning_of([torch.nn.Parameter(torch.ones(2))], ActConfig().training_preset())
    write_state(
        tmp_path / "state", trainer_state.snapshot(), RngStreams(1).lerobot_rng_state(1), BATCH
    )
    (tmp_path / "state" / name).write_text(text)
    with refuses(UsageError, "checkpoint.invalid-state") as refused:
        read_state(tmp_path / "state", trainer_state)
    assert name in str(refused.value)
    (tmp_path / "state" / name).unlink()
    with refuses(UsageError, "checkpoint.unreadable"):
        read_state(tmp_path / "state", trainer_state)


def test_averages_begin_as_a_copy_and_then_follow():
    settings = EmaSettings(enable=True)
    assert [decay_at(settings, n) for n in (1, 2)] == [0.0, pytest.approx(1 - 2**-0.75)]
    assert decay_at(settings, 10**9) == 0.9999
    assert decay_at(EmaSettings(decay=0.5, update_after_step=3), 4) == 0.0
    assert decay_at(EmaSettings(decay=0.5, update_after_step=3), 5) == 0.5
    weight = torch.nn.Parameter(torch.zeros(1))
    average = WeightAverage(EmaSettings(decay=0.75), [weight])
    for value in (4.0, 8.0):
        weight.data.fill_(value)
        average.update([weight])
    assert average.weights[0].item() == 5.0
    # As LeRobot says "always": diffusers without its warm-up would rise, (1 + n) / (10 + n).
    state = average.state()
    assert (state["decay"], state["min_decay"], state["use_ema_warmup"]) == (0.75, 0.75, True)


def test_a_pickle_that_is_no_average_runs_nothing(tmp_path):
    import pickle

    class Evil:
        def __reduce__(self):
            return (Path(tmp_path / "ran").touch, ())

    trainer_state = learning_of(
        [torch.nn.Parameter(torch.ones(2))], ActConfig().training_preset(), EmaSettings(enable=True)
    )
    write_state(
        tmp_path / "state", trainer_state.snapshot(), RngStreams(1).lerobot_rng_state(1), BATCH
    )
    (tmp_path / "state/ema_state.pt").write_bytes(pickle.dumps(Evil(), protocol=2))
    with refuses(UsageError, "checkpoint.unreadable"):
        read_state(tmp_path / "state", trainer_state)
    assert not (tmp_path / "ran").exists()
