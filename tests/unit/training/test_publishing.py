"""Uploads of policies to a fake Hub that keeps commits in memory, without a network."""

from __future__ import annotations

import fnmatch
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.refusals import refuses
from tests.training_folders import RECORD, write_training

from .builders import RUN, SMALL_ACT, words

pytest.importorskip("torch")
from huggingface_hub.errors import LocalTokenNotFoundError

from proctor.cli import main
from proctor.config.builder import build
from proctor.config.training import TrainConfig
from proctor.errors import UsageError
from proctor.training.checkpoints import publishing
from proctor.training.checkpoints.card import PolicyCard, render_card
from proctor.training.checkpoints.folder import TrainingFolder
from proctor.training.checkpoints.publishing import check_publication, parse_publication, publish

PUSH = {"policy.push_to_hub": "true", "policy.repo_id": "me/policy"}


@dataclass
class FakeHub:
    """Current files of each repository."""

    repos: dict[str, dict[str, bytes]] = field(default_factory=dict)
    private: bool | None = None
    problem: Exception | None = None
    stranger: bool = False

    def whoami(self) -> dict[str, str]:
        if self.stranger:
            raise LocalTokenNotFoundError("no token")
        return {"name": "me"}

    def create_repo(self, repo: str, *, private: bool | None, exist_ok: bool) -> str:
        assert exist_ok
        if self.problem is not None:
            raise self.problem
        self.private = private
        self.repos.setdefault(repo, {})
        return f"https://hub/{repo}"

    def upload_folder(self, *, repo_id: str, folder_path: Path, **said: Any) -> None:
        there = self.repos[repo_id]
        for name in [n for n in there if matches(n, said["delete_patterns"])]:
            del there[name]
        for path in folder_path.iterdir():
            asked = matches(path.name, said["allow_patterns"])
            if asked and not matches(path.name, said["ignore_patterns"]):
                there[path.name] = path.read_bytes()

    def upload_file(self, *, repo_id: str, path_in_repo: str, path_or_fileobj: bytes, **_: Any):
        self.repos[repo_id][path_in_repo] = path_or_fileobj


def matches(name: str, patterns: list[str]) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    made = FakeHub()
    monkeypatch.setattr(publishing, "hub_api", lambda: made)
    return made


def test_the_last_checkpoint_is_uploaded_with_its_average_and_a_card(numbers, tmp_path, hub):
    hub.repos["me/policy"] = {"adapter_model.safetensors": b"of before", "video.mp4": b"kept"}
    more = PUSH | {"policy.private": "true", "policy.tags": "[push, mine]", "ema.enable": "true"}
    run = tmp_path / "run"
    assert main(["train", *words(numbers, run, SMALL_ACT, RUN, more, {"steps": 4})]) == 0
    there = hub.repos["me/policy"]
    last = run / "checkpoints/last/pretrained_model"
    assert there.keys() == {p.name for p in last.iterdir()} | {"README.md", "video.mp4"}
    assert there["model.safetensors"] == (last / "model.safetensors").read_bytes()
    assert hub.repos["me/policy-ema"]["model.safetensors"] != there["model.safetensors"]
    assert hub.private is True
    for name, held in there.items():
        assert str(tmp_path).encode() not in held, f"{name} shows a local path"
    train_config = json.loads(there["train_config.json"])
    assert train_config["output_dir"] is train_config["dataset"]["root"] is None
    card = there["README.md"].decode()
    head = yaml.safe_load(card.split("---")[1])
    assert head["tags"] == ["act", "lerobot", "mine", "proctor", "push", "robotics"]
    assert (head["library_name"], head["license"]) == ("lerobot", "apache-2.0")
    assert head["datasets"] == ["someone/numbers"]
    assert "It was not evaluated." in card
    assert "for 4 steps" in card


def test_a_failed_upload_is_one_warning_with_the_command_that_repeats_it(
    numbers, tmp_path, hub, capsys
):
    hub.problem = ConnectionError("the cable is out")
    run = tmp_path / "run"
    asked = words(numbers, run, SMALL_ACT, RUN, PUSH | {"policy.private": "false"}, {"steps": 2})
    assert main(["train", *asked]) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning")]
    assert len(said) == 1
    assert "me/policy" in said[0]
    assert (run / "checkpoints/last/pretrained_model/model.safetensors").is_file()
    again = said[0].partition("to upload it: proctor ")[2].split()
    assert again[:2] == ["train", "--resume"]
    assert "--policy.private=false" in again
    hub.problem = None
    before = (run / "log.jsonl").read_bytes()
    assert main(again) == 0
    assert "uploaded: https://hub/me/policy (step 2)" in capsys.readouterr().out
    assert "model.safetensors" in hub.repos["me/policy"]
    assert (run / "log.jsonl").read_bytes() == before  # nothing was trained again


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"policy.push_to_hub": "true"}, "--policy.repo_id=USER/NAME"),
        (PUSH | {"policy.repo_id": "policy"}, "--policy.repo_id: 'policy'"),
        (PUSH | {"policy.private": "maybe"}, "--policy.private"),
        (PUSH | {"save_checkpoint": "false"}, "--save_checkpoint"),
        (PUSH | {"policy.eval_results": "me/benchmark"}, "--policy.eval_results=me/benchmark"),
        (PUSH, "HF_TOKEN"),
    ],
    ids=str,
)
def test_what_cannot_be_uploaded_is_one_line_before_anything_begins(
    numbers, tmp_path, hub, capsys, settings, told
):
    hub.stranger = True
    asked = words(numbers, tmp_path / "run", SMALL_ACT, RUN, settings)
    assert main(["train", *asked]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert told in said[0]
    assert not (tmp_path / "run").exists()


def test_no_network_and_a_base_that_nobody_has_are_said_before_anything_begins(hub, monkeypatch):
    asked = parse_publication(PUSH)
    with refuses(UsageError, "hub.unpublished-base") as refused:
        check_publication(asked, "/home/me/base")
    assert "/home/me/base" in str(refused.value)
    check_publication(asked, "me/base")

    def unreachable() -> None:
        raise ConnectionError("the cable is out")

    monkeypatch.setattr(hub, "whoami", unreachable)
    with refuses(UsageError, "hub.unreachable") as refused:
        check_publication(asked, None)
    assert "me/policy" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_only_flags_ask_for_an_upload():
    assert parse_publication({"policy.repo_id": "me/policy"}) is None
    assert parse_publication({**PUSH, "policy.push_to_hub": "false"}) is None
    build(TrainConfig, {"policy.type": "act", "dataset.repo_id": "a/b", "policy.repo_id": "me/x"})


def test_a_card_states_the_evaluation_and_what_it_is_of(tmp_path):
    run = write_training(tmp_path / "run")
    folder = run / "checkpoints/000200/pretrained_model"
    folder.mkdir()
    (folder / "config.json").write_text('{"type": "act"}')
    card = render_card(PolicyCard(run, folder, "me/policy"), [], "mit")
    record = json.loads((run / "eval/000200/run.json").read_text())
    assert (
        "| success | `87.5% [52.9, 97.8] n=8, 1 error (77.8% to 88.9% if it had counted)` |" in card
    )
    assert f"| protocol | `{record['fingerprint']}` |" in card
    assert "The best of 2 checkpoints" in card
    assert "proctor eval --policy.path=me/policy" in card
    assert "proctor train --dataset.repo_id=me/demos --policy.type=act --steps=400" in card
    assert "| torch | `2.9` |" in card
    assert yaml.safe_load(card.split("---")[1])["license"] == "mit"
    assert RECORD["given"]["dataset.repo_id"] in card


def test_a_card_says_nothing_that_markup_would_make_of_a_name(tmp_path):
    hostile = {"given": {"dataset.repo_id": "x`|\n# y", "steps": "```\n<b>"}}
    hostile["resolved"] = {"dataset": {"repo_id": "a`|\n---\n# b\x1b[31m"}, "batch_size": 8}
    run = write_training(tmp_path / "run", record=RECORD | hostile)
    folder = run / "checkpoints/000200/pretrained_model"
    folder.mkdir()
    (folder / "config.json").write_text('{"type": "act"}')
    card = render_card(PolicyCard(run, folder, "me/policy"), [], None)
    assert "\x1b" not in card
    assert card.count("\n---\n") == 1
    assert "\n# b" not in card
    assert "\n# y" not in card


def test_the_success_rate_is_uploaded_as_a_result_of_a_benchmark_dataset(tmp_path, hub):
    run = write_training(tmp_path / "run")
    folder = run / "checkpoints/000200/pretrained_model"
    folder.mkdir()
    (folder / "config.json").write_text('{"type": "act"}')
    asked = parse_publication(PUSH | {"policy.eval_results": "org/benchmark:easy"})
    lines = publish(TrainingFolder(run), asked)
    assert [line.partition(":")[0] for line in lines] == ["uploaded", "uploaded"]
    (result,) = yaml.safe_load(hub.repos["me/policy"][".eval_results/easy.yaml"])
    assert result["dataset"] == {"id": "org/benchmark", "task_id": "easy"}
    assert result["value"] == pytest.approx(57.14)  # of the episodes in the evaluation's folder
    assert "best of 2 checkpoints" in result["notes"]
    publish(TrainingFolder(run), parse_publication(PUSH | {"policy.repo_id": "me/other"}))
    assert ".eval_results/easy.yaml" not in hub.repos["me/other"]


def test_weights_without_an_evaluation_have_no_result_file(tmp_path, hub):
    run = write_training(tmp_path / "run", lines=[])
    folder = run / "checkpoints/000200/pretrained_model"
    folder.mkdir()
    (folder / "config.json").write_text('{"type": "act"}')
    asked = parse_publication(PUSH | {"policy.eval_results": "org/benchmark:easy"})
    _, said = publish(TrainingFolder(run), asked)
    assert said.startswith("note: me/policy has no .eval_results")
    assert set(hub.repos["me/policy"]) == {"config.json", "README.md"}
