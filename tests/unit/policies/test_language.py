"""What a network is told of its task: words as tokens, from files that nobody vouches for."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.refusals import refuses
from tests.unit.policies.small_policies import (
    ACTION,
    INPUTS,
    STATE,
    batch_of,
    episode,
    fresh_queries,
)
from tests.unit.policies.tiny_tokenizer import PAD, VOCABULARY, rules, split, write_tokenizer
from torch import Tensor, nn

from proctor.errors import UsageError
from proctor.features import LANGUAGE_MASK, LANGUAGE_TOKENS, NormMode
from proctor.fingerprint import ConfigUse
from proctor.policies.lerobot.checkpoint.saving import write_pipeline
from proctor.policies.lerobot.config.config import CheckpointConfig
from proctor.policies.lerobot.processors.pipelines import (
    default_pipelines,
    file_hashes,
    read_pipelines,
)
from proctor.policies.lerobot.processors.processors import (
    Normalize,
    Pipeline,
    Rename,
    Stats,
    UsualSteps,
)
from proctor.policies.lerobot.processors.relative_actions import AbsoluteActions, RelativeActions
from proctor.policies.lerobot.processors.step import ProcessorStep, PromptInputs
from proctor.policies.lerobot.tokenizer.language import Tokenize
from proctor.policies.lerobot.tokenizer.tokenizer import TextTokenizer, Tokenizers
from proctor.policies.pi0.steps import Pi0NewLine, Pi05StatePrompt
from proctor.policies.pi0_fast.steps import Pi0FastStatePrompt
from proctor.policies.runtime.chunk_policy import ChunkPolicy, LoadedCheckpoint
from proctor.policies.runtime.network import Network
from proctor.policies.runtime.prompts import InstructionEncoder
from proctor.policies.smolvla.steps import SmolVlaNewLine

STATS: Stats = {
    key: {"min": torch.full((n,), -2.0), "max": torch.full((n,), 2.0)}
    for key, n in ((STATE, 4), ("action", 3))
}


@dataclass
class Listening(CheckpointConfig):
    """A policy that is told its task by tokens, with or without its state in the prompt."""

    type: str = "listening"
    input_features: Any = field(default_factory=lambda: INPUTS)
    output_features: Any = field(default_factory=lambda: ACTION)
    n_action_steps: int = 2
    normalization_mapping: Any = field(
        default_factory=lambda: {"STATE": NormMode.MIN_MAX, "ACTION": NormMode.MIN_MAX}
    )
    with_state: bool = False
    relative: bool = False
    most_tokens: int = 24

    @property
    def language_conditioned(self) -> bool:
        return True

    def processing(
        self, usual: UsualSteps
    ) -> tuple[Sequence[ProcessorStep], Sequence[ProcessorStep]]:
        words = [Pi05StatePrompt()] if self.with_state else [SmolVlaNewLine()]
        tokens = Tokenize(max_length=self.most_tokens, tokenizer_name="somebody/tiny")
        before = [usual.rename, usual.to_batch, RelativeActions(self.relative), usual.normalize]
        return [*before, *words, tokens, usual.to_device], [
            usual.unnormalize,
            AbsoluteActions(self.relative),
            usual.to_cpu,
        ]


class Echo(Network):
    """Returns the first tokens that it hears as actions, where they are words."""

    takes_history = False

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def chunk(self, inputs: dict[str, Tensor], draws: dict[str, Tensor]) -> Tensor:
        heard = inputs[LANGUAGE_TOKENS] * inputs[LANGUAGE_MASK]
        return heard[:, :6].reshape(-1, 2, 3).float() * self.weight

    def loss(
        self, batch: dict[str, Tensor], draws: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        raise NotImplementedError

    def compiled_modules(self) -> list[nn.Module]:
        return []


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    return write_tokenizer(tmp_path / "tokenizer")


def parts_of(config: Listening) -> LoadedCheckpoint:
    return LoadedCheckpoint(config, Echo(), "", *default_pipelines(config, STATS, STATS))


def ids(text: str) -> list[int]:
    return [VOCABULARY[word] for word in text.split(" ")]


def words_of(tokens: Any) -> list[str]:
    by_number = {number: word for word, number in VOCABULARY.items()}
    return [by_number[int(n)] for n in tokens]


def equipped(step: ProcessorStep, folder: Path) -> ProcessorStep:
    return step.with_tokenizers(Tokenizers(given=str(folder)))


def test_words_become_tokens_of_one_length_and_the_mask_says_which_are_words(
    tokenizer: Path,
) -> None:
    step = equipped(Tokenize(max_length=6), tokenizer)
    told = step.encode_prompt(
        PromptInputs(("push the puck", "push the red puck up the door"))
    ).arrays
    assert told[LANGUAGE_TOKENS].dtype == np.int64
    assert told[LANGUAGE_MASK].dtype == np.bool_
    assert told[LANGUAGE_TOKENS][0].tolist() == ids("<s> push the puck </s> <pad>")
    assert told[LANGUAGE_MASK][0].tolist() == [True] * 5 + [False]
    # cut, but with its end
    assert told[LANGUAGE_TOKENS][1].tolist() == ids("<s> push the red puck </s>")
    assert told[LANGUAGE_MASK][1].all()


def test_tokens_are_filled_up_on_the_side_that_the_step_says(tokenizer: Path) -> None:
    step = equipped(Tokenize(max_length=5, padding_side="left"), tokenizer)
    told = step.encode_prompt(PromptInputs(("push",))).arrays
    assert told[LANGUAGE_TOKENS][0].tolist() == ids("<pad> <pad> <s> push </s>")
    assert told[LANGUAGE_MASK][0].tolist() == [False, False, True, True, True]


def test_where_nothing_may_be_cut_too_many_words_are_refused(tokenizer: Path) -> None:
    step = equipped(Tokenize(max_length=4, truncation=False), tokenizer)
    with refuses(UsageError, "policy.prompt-too-long") as refused:
        step.encode_prompt(PromptInputs(("push the puck",)))
    assert "'push the puck'" in str(refused.value)


@pytest.mark.parametrize("step", [SmolVlaNewLine(), Pi0NewLine()])
def test_a_new_line_is_put_where_none_is(step: ProcessorStep) -> None:
    assert step.encode_prompt(PromptInputs(("push", "push\n"))).words == ("push\n", "push\n")


@pytest.mark.parametrize(
    ("step", "ending"), [(Pi05StatePrompt(), "Action: "), (Pi0FastStatePrompt(), "")]
)
def test_a_prompt_names_the_numbers_of_the_state(step: ProcessorStep, ending: str) -> None:
    state = torch.tensor([[-1.5, -1.0, 0.0, 127 / 128], [2.0, 0.99, -0.999, 0.5]])
    words = step.encode_prompt(PromptInputs((" push_the\npuck ", "pull"), {STATE: state})).words
    assert words[0] == f"Task: push the puck, State: -1 0 128 255;\n{ending}"
    assert words[1] == f"Task: pull, State: 255 254 0 192;\n{ending}"


def test_words_alone_are_read_once_for_all_queries(tokenizer: Path) -> None:
    parts = parts_of(Listening(tokenizer=str(tokenizer)))
    instruction_encoder, calls = parts.instruction_encoder(ConfigUse.EVALUATION), []
    assert instruction_encoder.needs == ()

    class Counting(TextTokenizer):
        def encode(self, text: str, *args: Any, **kwargs: Any) -> list[int]:
            calls.append(text)
            return super().encode(text, *args, **kwargs)

    counting = Counting(Tokenizers(given=str(tokenizer)).find(None).files, "here")
    steps = [
        replace(s, tokenizer=counting) if isinstance(s, Tokenize) else s
        for s in parts.preprocessor.steps
    ]
    instruction_encoder = InstructionEncoder(
        parts.config, Pipeline("policy_preprocessor", tuple(steps))
    )
    for _ in range(3):
        instruction_encoder(["push", "pull", "push"], {})
    assert calls == ["push\n", "pull\n"]


def test_a_policy_hears_the_words_of_each_task_and_those_given_by_hand(tokenizer: Path) -> None:
    policy = ChunkPolicy(parts_of(Listening(tokenizer=str(tokenizer))), "cpu")
    assert policy.spec.language_conditioned
    specs = [episode(0), episode(1)]
    tasks = [replace(specs[0].task, instruction="push"), replace(specs[1].task, instruction="open")]
    specs = [replace(s, task=t) for s, t in zip(specs, tasks, strict=True)]
    actions = policy.act(batch_of(policy, fresh_queries(policy, specs)))
    heard = actions.reshape(2, 6) / 2  # MIN_MAX over [-2, 2]
    assert words_of(heard[0]) == ["<s>", "push", "\n", "</s>", PAD, PAD]
    assert words_of(heard[1]) == ["<s>", "open", "\n", "</s>", PAD, PAD]
    other = ChunkPolicy(parts_of(Listening(tokenizer=str(tokenizer), instruction="pull")), "cpu")
    assert not other.spec.language_conditioned
    actions = other.act(batch_of(other, fresh_queries(other, specs)))
    assert words_of(actions.reshape(2, 6)[0] / 2)[1] == "pull"
    for said in ({"instruction": ""}, {"instructions": {specs[0].task.name: ""}}):  # no words
        silent = ChunkPolicy(parts_of(Listening(tokenizer=str(tokenizer), **said)), "cpu")
        actions = silent.act(batch_of(silent, fresh_queries(silent, specs)))
        assert words_of(actions.reshape(2, 6)[0] / 2)[:3] == ["<s>", "\n", "</s>"]


def test_a_prompt_with_the_state_is_read_for_each_query(tokenizer: Path) -> None:
    policy = ChunkPolicy(parts_of(Listening(tokenizer=str(tokenizer), with_state=True)), "cpu")
    instruction_encoder = policy.parts.instruction_encoder(ConfigUse.EVALUATION)
    assert instruction_encoder.needs == (STATE,)
    raw = torch.tensor([[0.0, 0.0, -2.0, 2.0], [-2.0, 0.0, 0.0, 0.0]])
    told = instruction_encoder(["push", "push"], {STATE: raw})[LANGUAGE_TOKENS]
    prompt = "<s> Task : push , State : 128 128 0 255 ; \n Action : </s>"
    assert words_of(told[0][:16]) == prompt.split(" ")
    assert words_of(told[1][7:11]) == ["0", "128", "128", "128"]
    specs = [episode(0), episode(1), episode(2)]
    together = policy.act(batch_of(policy, fresh_queries(policy, specs)))
    for row, spec in enumerate(specs):
        alone = policy.act(batch_of(policy, fresh_queries(policy, [spec])))
        np.testing.assert_array_equal(together[row], alone[0])


def test_a_prompt_without_the_state_that_it_names_is_refused(tokenizer: Path) -> None:
    parts = parts_of(Listening(tokenizer=str(tokenizer), with_state=True))
    rename, *others = parts.preprocessor.steps
    lost = replace(parts.preprocessor, steps=(rename, Rename({STATE: "observation.x"}), *others))
    with refuses(UsageError, "checkpoint.pipeline-mismatch"):
        ChunkPolicy(replace(parts, preprocessor=lost), "cpu")


def test_samples_to_learn_from_hear_what_a_rollout_hears(tokenizer: Path) -> None:
    parts = parts_of(Listening(tokenizer=str(tokenizer), with_state=True))
    instruction_encoder = pickle.loads(
        pickle.dumps(parts.instruction_encoder(ConfigUse.TRAINING))
    )  # as loader processes get it
    rows = {STATE: torch.rand(3, 4, generator=torch.Generator().manual_seed(0))}
    here = parts.instruction_encoder(ConfigUse.EVALUATION)(["push", "pull", "push"], rows)
    there = instruction_encoder(["push", "pull", "push"], rows)
    for name in (LANGUAGE_TOKENS, LANGUAGE_MASK):
        np.testing.assert_array_equal(here[name], there[name])


def test_relative_actions_are_undone_by_the_state_of_their_query(tokenizer: Path) -> None:
    relative = RelativeActions(True, ["gripper"], ["x", "Gripper_left", "z"])
    state, actions = torch.tensor([[1.0, 2.0, 3.0, 4.0]]), torch.zeros(1, 2, 3)
    made = relative({"action": actions, STATE: state})["action"]
    assert made.tolist() == [[[-1.0, 0.0, -3.0]] * 2]
    behind = AbsoluteActions(True).inverse_of([relative])
    assert behind({"action": made, STATE: state})["action"].tolist() == actions.tolist()
    with refuses(UsageError, "checkpoint.invalid-pipeline"):
        AbsoluteActions(True).inverse_of([RelativeActions(False)])
    plain = ChunkPolicy(parts_of(Listening(tokenizer=str(tokenizer))), "cpu")
    moved = ChunkPolicy(parts_of(Listening(tokenizer=str(tokenizer), relative=True)), "cpu")
    batch = batch_of(plain, fresh_queries(plain, [episode(0), episode(1)]))
    offset = batch.observations[STATE][:, -1:, :3].astype(np.float32)
    np.testing.assert_allclose(moved.act(batch), plain.act(batch) + offset, rtol=1e-6)


def test_pipelines_are_written_as_lerobot_writes_them_and_read_again(
    tokenizer: Path, tmp_path: Path
) -> None:
    config = Listening(tokenizer=str(tokenizer), with_state=True)
    before, after = default_pipelines(config, STATS, STATS)
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    write_pipeline(before, folder)
    write_pipeline(after, folder)
    steps = json.loads((folder / "policy_preprocessor.json").read_text())["steps"]
    assert [step["registry_name"] for step in steps] == [
        "rename_observations_processor",
        "to_batch_processor",
        "relative_actions_processor",
        "normalizer_processor",
        "pi05_prepare_state_tokenizer_processor_step",
        "tokenizer_processor",
        "device_processor",
    ]
    assert steps[2]["config"] == {"enabled": False, "exclude_joints": [], "action_names": None}
    assert steps[4]["config"] == {}
    assert steps[5]["config"] == {
        "max_length": 24,
        "task_key": "task",
        "padding_side": "right",
        "padding": "max_length",
        "truncation": True,
        "tokenizer_name": "somebody/tiny",
    }
    # The tokenizer came along: nothing has to be named, and no Hub is asked.
    again, _ = read_pipelines(folder, Listening(with_state=True))
    assert again.protocol() == before.protocol()
    assert file_hashes(again) == file_hashes(before)
    assert set(file_hashes(again)) == {
        "tokenizer/tokenizer.json",
        "tokenizer/tokenizer_config.json",
    }
    (folder / "tokenizer" / "tokenizer.json").write_text(json.dumps(rules(version="1.0 ")))
    with pytest.raises(UsageError):
        read_pipelines(folder, Listening(with_state=True))


def test_flags_change_the_steps_in_a_checkpoints_files(tokenizer: Path, tmp_path: Path) -> None:
    config = Listening(tokenizer=str(tokenizer))
    for pipeline in default_pipelines(config, STATS, STATS):
        write_pipeline(replace(pipeline, steps=tuple(map(_longer, pipeline.steps))), tmp_path)
    as_filed = read_pipelines(tmp_path, config, config)
    assert _tokens_of(as_filed).max_length == 25  # not what a new policy would have
    mapping = {"STATE": NormMode.MEAN_STD, "ACTION": NormMode.MIN_MAX}
    asked = replace(config, most_tokens=9, relative=True, normalization_mapping=mapping)
    before, after = read_pipelines(tmp_path, asked, config)
    assert _tokens_of((before, after)).max_length == 9
    (relative,) = [s for s in before.steps if isinstance(s, RelativeActions)]
    (absolute,) = [s for s in after.steps if isinstance(s, AbsoluteActions)]
    assert relative.enabled
    assert absolute.enabled
    for step in (*before.steps, *after.steps):
        if isinstance(step, Normalize):
            assert step.norm_map == mapping
            assert set(step.stats) == set(STATS)
    short = replace(as_filed[0], steps=as_filed[0].steps[:2] + as_filed[0].steps[3:])
    write_pipeline(short, tmp_path)
    with refuses(UsageError, "flag.unused") as refused:
        read_pipelines(tmp_path, asked, config)
    assert "relative_actions_processor" in str(refused.value)


def test_newer_lerobots_say_in_which_folder_a_tokenizer_is(tokenizer: Path, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    for pipeline in default_pipelines(Listening(tokenizer=str(tokenizer)), STATS, STATS):
        write_pipeline(pipeline, folder)
    (folder / "tokenizer").rename(folder / "words")
    file = folder / "policy_preprocessor.json"
    told = json.loads(file.read_text())
    for artifacts, named in (
        ({"tokenizer_name": "../words"}, "'../words'"),
        ({"scale": "words"}, "'scale'"),
        ({"tokenizer_name": "words"}, None),
    ):
        told["steps"][5]["artifacts"] = artifacts
        file.write_text(json.dumps(told))
        if named is not None:
            with refuses(UsageError, "checkpoint.unsupported-step") as refused:
                read_pipelines(folder, Listening())
            assert named in str(refused.value)
    before, _ = read_pipelines(folder, Listening())
    assert set(file_hashes(before)) == {
        "tokenizer/tokenizer.json",
        "tokenizer/tokenizer_config.json",
    }


class Small(Echo):
    vocabulary = 3  # type: ignore[assignment]


def test_tokens_that_a_policy_does_not_know_are_one_line(tokenizer: Path) -> None:
    parts = replace(parts_of(Listening(tokenizer=str(tokenizer))), network=Small())
    with refuses(UsageError, "policy.unknown-token"):
        ChunkPolicy(parts, "cpu")


def _longer(step: ProcessorStep) -> ProcessorStep:
    return replace(step, max_length=25) if isinstance(step, Tokenize) else step


def _tokens_of(pipelines: tuple[Pipeline, Pipeline]) -> Tokenize:
    (step,) = [s for s in pipelines[0].steps if isinstance(s, Tokenize)]
    return step


def test_a_tokenizer_that_is_nowhere_says_where_to_put_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with refuses(UsageError, "tokenizer.not-found") as refused:
        Tokenizers(tmp_path).find("somebody/tiny")
    told = str(refused.value)
    assert "somebody/tiny" in told
    assert "--policy.tokenizer=DIR" in told
    assert "\n" not in told
    with refuses(UsageError, "tokenizer.not-found"):
        Tokenizers(tmp_path).find(None)
    (tmp_path / "empty").mkdir()
    with refuses(UsageError, "tokenizer.not-found") as refused:
        Tokenizers(given=str(tmp_path / "empty")).find(None)
    assert f"--policy.tokenizer={tmp_path / 'empty'}" in str(refused.value)


def test_a_tokenizer_beside_the_config_comes_before_one_of_the_name(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    assert Tokenizers(tmp_path).find("somebody/tiny").encode("push") == ids("<s> push </s>")


def test_without_its_settings_a_tokenizer_cannot_fill_up(tmp_path: Path) -> None:
    folder = write_tokenizer(tmp_path / "bare", settings=False)
    with refuses(UsageError, "tokenizer.missing-token"):
        equipped(Tokenize(), folder)
    padding = {
        "strategy": {"Fixed": 10**15},  # of its file, only the number counts
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 3,
        "pad_type_id": 0,
        "pad_token": "<unk>",
    }
    folder = write_tokenizer(tmp_path / "filled", settings=False, padding=padding)
    step = equipped(Tokenize(max_length=4), folder)
    assert step.encode_prompt(PromptInputs(("push",))).arrays[LANGUAGE_TOKENS][0].tolist() == [
        *ids("<s> push </s>"),
        3,
    ]


LONG = "x" * 100
HOSTILE: dict[str, Any] = {
    "not JSON": b"{",
    "a list": b"[]",
    "deep": b"[" * 100_000,
    "no model": {"model": {"type": "Code", "run": "import os"}},
    "ids that are none": {"model": {"type": "WordLevel", "vocab": {"a": -1}, "unk_token": "a"}},
    "much of little": {
        "normalizer": {"type": "Replace", "pattern": {"String": "a"}, "content": LONG}
    },
    "much of nothing": {
        "normalizer": {"type": "Replace", "pattern": {"Regex": ""}, "content": LONG}
    },
    "little by little": {
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"} for _ in range(40)
            ],
        }
    },
    "again and again": {
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"Sequence": {"id": "A", "type_id": 0}}] * 1000,
            "pair": [],
            "special_tokens": {},
        }
    },
    "much, by a rule that does not say what it is": {
        "normalizer": {"pattern": {"String": "a"}, "content": LONG}
    },
    "much of what was said": {
        "decoder": {"type": "Replace", "pattern": {"Regex": ""}, "content": LONG}
    },
    "for ever": {"pre_tokenizer": split("(a+)+$", "Removed")},
    "said twice": json.dumps(rules())
    .replace('"normalizer": null', '"normalizer": null, "normalizer": 7')
    .encode(),
    "no numbers for words": {"model": {"type": "WordLevel", "vocab": {PAD: 0}, "unk_token": "?"}},
    "what is replaced is a number": {
        "normalizer": {"type": "Replace", "pattern": {"String": 7}, "content": "a"}
    },
    "rules without end": {
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [split(" ", "Removed", "String")] * 20_000,
        }
    },
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_tokenizer_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    hostile = HOSTILE[name]
    text = hostile if isinstance(hostile, bytes) else json.dumps(rules(**hostile)).encode()
    write_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes(text)
    with pytest.raises(UsageError) as refused:
        equipped(Tokenize(), tmp_path)
    told = str(refused.value)
    assert "tokenizer.json" in told
    assert "\n" not in told
    assert len(told) < 500


@pytest.mark.parametrize(
    ("changes", "allowed"),
    [
        ({"max_length": 10**9}, "1-4096"),
        ({"padding": "do_not_pad"}, "max_length, longest"),
        ({"padding_side": "up"}, "right, left"),
        ({"task_key": "subtask"}, "'task'"),
    ],
)
def test_an_unsupported_tokenizer_step_is_refused(changes: Any, allowed: str) -> None:
    with refuses(UsageError, "checkpoint.unsupported-step") as refused:
        replace(Tokenize(), **changes).check("policy_preprocessor.json step 3")
    assert str(refused.value).startswith("policy_preprocessor.json step 3: ")
    assert next(iter(changes)) in str(refused.value)
    assert allowed in str(refused.value)


def test_without_the_library_the_extra_is_named(
    tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with refuses(UsageError, "extra.missing") as refused:
        Tokenizers(given=str(tokenizer)).find(None)
    assert "proctor[vla]" in str(refused.value)


def test_a_policy_that_is_told_by_nobody_is_refused(tokenizer: Path) -> None:
    class Deaf(Listening):
        def processing(
            self, usual: UsualSteps
        ) -> tuple[Sequence[ProcessorStep], Sequence[ProcessorStep]]:
            return CheckpointConfig.processing(self, usual)

    with refuses(UsageError, "checkpoint.missing-tokenizer"):
        default_pipelines(Deaf(), STATS, STATS)


def test_a_tokenizer_for_a_policy_without_one_is_refused(tokenizer: Path) -> None:
    from tests.unit.policies.small_policies import small_act

    with refuses(UsageError, "flag.unused"):
        default_pipelines(small_act(tokenizer=str(tokenizer)), {}, {})
