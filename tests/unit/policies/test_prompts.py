"""Padding behind words is left out by each row's own words; rows come back in their order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.unit.policies.small_policies import batch_of, episode, fresh_queries
from tests.unit.policies.test_language import Echo, Listening, parts_of
from tests.unit.policies.tiny_tokenizer import write_tokenizer
from torch import Tensor

from proctor.features import LANGUAGE_MASK, LANGUAGE_TOKENS, Array
from proctor.policies.runtime.chunk_policy import ChunkPolicy
from proctor.policies.runtime.prompts import group_by_prompt_length

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
WORDS = ["push", "pull the red puck up", "open", "push the puck"]


def rows_of(lengths: list[int], most: int) -> dict[str, Array]:
    mask = np.arange(most) < np.array(lengths)[:, None]
    return {"mask": mask, "tokens": mask * 7, "seen": np.arange(len(lengths))}


def widths(lengths: list[int], most: int, device: torch.device) -> dict[int, list[int]]:
    parts = group_by_prompt_length(rows_of(lengths, most), "mask", ("tokens",), device)
    for part in parts:
        assert part.rows["tokens"].shape == part.rows["mask"].shape
        assert part.rows["seen"].tolist() == part.places.tolist()
        assert part.rows["mask"].sum(1).tolist() == [lengths[place] for place in part.places]
    return {part.rows["mask"].shape[1]: part.places.tolist() for part in parts}


def test_on_a_cpu_no_padding_is_left() -> None:
    assert widths([3, 5, 3, 48], 48, CPU) == {3: [0, 2], 5: [1], 48: [3]}
    assert widths([0], 48, CPU) == {1: [0]}  # of no words, a place for one


def test_on_a_gpu_there_are_two_lengths() -> None:
    assert widths([3, 24, 25, 0, 48], 48, CUDA) == {24: [0, 1, 3], 48: [2, 4]}
    assert widths([60, 104], 200, CUDA) == {104: [0, 1]}
    assert widths([1, 4], 4, CUDA) == {4: [0, 1]}


def test_padding_before_words_stays() -> None:
    mask = np.arange(8)[None] >= 5
    (part,) = group_by_prompt_length({"mask": mask}, "mask", (), CPU)
    assert part.rows["mask"].shape == (1, 8)


class Skipping(Echo):
    """Adds how much it was given to read to what it hears."""

    skips_padding = True

    def chunk(self, inputs: dict[str, Tensor], draws: dict[str, Tensor]) -> Tensor:
        tokens, mask = (inputs[name] for name in (LANGUAGE_TOKENS, LANGUAGE_MASK))
        assert tokens.shape == mask.shape
        first = (tokens * mask)[:, 1:2].float()
        return (first * self.weight)[..., None].expand(-1, 2, 3) + 1000 * tokens.shape[1]


@pytest.fixture
def policy(tmp_path: Path) -> ChunkPolicy:
    config = Listening(tokenizer=str(write_tokenizer(tmp_path)))
    return ChunkPolicy(replace(parts_of(config), network=Skipping()), "cpu")


def test_rows_of_several_lengths_come_back_in_their_order(policy: ChunkPolicy) -> None:
    specs = [
        replace(episode(n), task=replace(episode(n).task, instruction=words))
        for n, words in enumerate(WORDS)
    ]
    together = policy.act(batch_of(policy, fresh_queries(policy, specs)))
    alone = [policy.act(batch_of(policy, fresh_queries(policy, [spec]))) for spec in specs]
    np.testing.assert_array_equal(together, np.concatenate(alone))
    lengths = together[:, 0, 0] // 2000  # MIN_MAX over [-2, 2]
    assert lengths.tolist() == [4, 8, 4, 6]  # with what begins and ends them, and a new line


def test_a_record_says_that_padding_was_left_out(policy: ChunkPolicy) -> None:
    assert policy.protocol()["numerics"]["prompts"] == "without padding"
