"""The report page of a training exists from its first checkpoint on, however it ends."""

from __future__ import annotations

import json

import pytest

from .builders import RUN, SMALL_ACT, words

pytest.importorskip("torch")

from proctor.cli import main
from proctor.runs.training import read_training
from proctor.training import loop


def shown(folder) -> dict:
    text = (folder / "report.html").read_text()
    return json.loads(text.split('id="run">')[1].split("</script>")[0])


def test_a_training_ends_with_its_page_and_says_where_it_is(numbers, tmp_path, capsys):
    assert main(["train", *words(numbers, tmp_path / "run", SMALL_ACT, RUN)]) == 0
    assert f"report: {tmp_path / 'run' / 'report.html'}" in capsys.readouterr().out
    seen = shown(tmp_path / "run")
    assert (seen["step"], seen["planned"], seen["curves"]["step"]) == (8, 8, [2, 4, 6, 8])
    assert set(seen["checkpoints"]) == {"000002", "000004", "000006", "000008", "last"}
    assert seen["time"]["total"] > 0


def test_a_broken_training_has_the_page_of_its_last_checkpoint(numbers, tmp_path, monkeypatch):
    untouched = loop.Trainer.update

    def update(self, network):
        if self.trainer_state.step == 6:
            raise KeyboardInterrupt if interrupted else RuntimeError
        return untouched(self, network)

    monkeypatch.setattr(loop.Trainer, "update", update)
    for interrupted in (True, False):
        folder = tmp_path / str(interrupted)
        asked = ["train", *words(numbers, folder, SMALL_ACT, RUN, {"log_freq": 1})]
        if interrupted:
            assert main(asked) == 130
        else:
            with pytest.raises(RuntimeError):
                main(asked)
        assert shown(folder)["curves"]["step"] == ([1, 2, 3, 4, 5] if interrupted else [1, 2, 3, 4])


def test_no_gradient_is_null_in_the_log(numbers, tmp_path):
    often = {"accelerator.gradient_accumulation.steps": 2, "log_freq": 1}
    assert main(["train", *words(numbers, tmp_path / "run", SMALL_ACT, RUN, often)]) == 0
    norms = [norm is None for norm in shown(tmp_path / "run")["curves"]["grad_norm"]]
    assert norms == [True, False] * 4


def test_the_settings_of_a_file_are_kept_too(numbers, tmp_path):
    file = tmp_path / "asked.json"
    file.write_text(json.dumps({"steps": 2, "batch_size": 3, "dataset": {"root": str(numbers)}}))
    flags = [f"--{name}={value}" for name, value in SMALL_ACT.items()]
    output = f"--output_dir={tmp_path / 'run'}"
    assert main(["train", f"--config_path={file}", "--steps=4", output, *flags]) == 0
    record = read_training(tmp_path / "run")
    assert record is not None
    given = record.given
    assert (given["batch_size"], given["steps"], given["dataset.root"]) == (3, "4", str(numbers))
    assert "--batch_size=3" in shown(tmp_path / "run")["command"]
    assert main(["train", "--resume", output, "--steps=6"]) == 0
    assert shown(tmp_path / "run")["step"] == 6
    assert shown(tmp_path / "run")["title"].startswith("act, trained on ")
    assert "--steps=6" in shown(tmp_path / "run")["command"]
