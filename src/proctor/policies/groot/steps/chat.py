"""Chat formats of the backbones: one user message with images and a text.

N1.7  <|im_start|>user\\n<|vision_start|>image<|vision_end|>...text<|im_end|>\\n
N1.5  <|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n<|im_start|>user\\n
      <image 1><img>image</img><image 2><img>image</img>['text']<|im_end|>\\n
      <|im_start|>assistant\\n

A tokenizer's chat template is a program and is not run. It is read as text for one thing: a system
message that it puts before the first message.

N1.5's text is the instruction as a Python list, as in NVIDIA's training. How many images there are
is not known when a prompt is encoded. So a prompt has the tokens between images for ``MOST_VIEWS``
images, and the network takes those that it needs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import numpy as np

from proctor.errors import UsageError
from proctor.features import LANGUAGE_MASK, LANGUAGE_TOKENS
from proctor.policies.groot.steps.images import PatchGeometry
from proctor.policies.lerobot.processors.step import ProcessorStep, PromptInputs
from proctor.policies.lerobot.tokenizer.tokenizer import SETTINGS, TextTokenizer

IMAGES = "preprocessor_config.json"
TEMPLATE, OLD_TEMPLATE = "chat_template.jinja", "chat_template.json"
ASSETS = (IMAGES, TEMPLATE, OLD_TEMPLATE)
"""Files beside a tokenizer that are read too."""
_START, _END = "<|im_start|>", "<|im_end|>"
_IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
_SYSTEM = re.compile(r"<\|im_start\|>system(?:\\n|\n)([^'\"{}<]{1,2000})<\|im_end\|>")
_TRIED = "push the puck"


@dataclass(frozen=True)
class ChatPrompt:
    """Encodes prompts; the tokens before the first image are the same in all of them."""

    tokenizer: TextTokenizer
    prefix: tuple[int, ...]
    before: str
    """Text before the first image."""
    pad: int

    def encode(self, text: str) -> list[int]:
        """Return the prefix, the start and the end of an image, and the text's tokens."""
        found = self.tokenizer.encode(f"{self.before}{_IMAGE}{text}{_END}\n")
        return [*found[: len(self.prefix) + 1], *found[len(self.prefix) + 2 :]]


def read_prompt(tokenizer: TextTokenizer) -> ChatPrompt:
    """Return the chat format of a tokenizer."""
    start, pad, end = (tokenizer.number(f"<|{name}|>") for name in _NAMES)
    template = _template(tokenizer)
    for part in (_START, "<|image_pad|>") if template else ():
        if part not in template:
            raise UsageError(
                f"{tokenizer.where}: its chat template has no {part}, so it is not Qwen3-VL's",
                code="tokenizer.unsupported-template",
            )
    said = _SYSTEM.search(template)
    system = f"{_START}system\n{said[1]}{_END}\n" if said else ""
    before = f"{system}{_START}user\n"
    found = tokenizer.encode(f"{before}{_IMAGE}{_TRIED}{_END}\n")
    place = found.index(start) if start in found else 0
    if found[place : place + 3] != [start, pad, end]:
        raise UsageError(
            f"{tokenizer.where}: it does not keep {_IMAGE} as three tokens",
            code="tokenizer.unsupported-template",
        )
    return ChatPrompt(tokenizer, tuple(found[:place]), before, tokenizer.pad)


_NAMES = ("vision_start", "image_pad", "vision_end")


def _template(tokenizer: TextTokenizer) -> str:
    """Return the chat template's text; empty if the tokenizer has none."""
    files = tokenizer.files
    if TEMPLATE in files:
        return files[TEMPLATE].decode(errors="replace")
    for name in (OLD_TEMPLATE, SETTINGS):
        found = _json(files, name).get("chat_template")
        if isinstance(found, str):
            return found
    return ""


def _json(files: Mapping[str, bytes], name: str) -> dict[str, Any]:
    try:
        found = json.loads(files.get(name, b"{}"))
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {}


def patch_geometry(tokenizer: TextTokenizer) -> PatchGeometry:
    """Return the image sizes in preprocessor_config.json beside a tokenizer, else Qwen3-VL's."""
    stated = _json(tokenizer.files, IMAGES)
    usual = PatchGeometry()
    given = stated.get("size")
    sizes: dict[str, Any] = given if isinstance(given, dict) else {}
    patch, merge = stated.get("patch_size", 16), stated.get("merge_size", 2)
    fewest = stated.get("min_pixels") or sizes.get("shortest_edge", usual.fewest)
    most = stated.get("max_pixels") or sizes.get("longest_edge", usual.most)
    numbers = patch, merge, fewest, most
    if not all(isinstance(n, int) and 1 <= n <= 2**30 for n in numbers) or fewest > most:
        raise UsageError(
            f"{tokenizer.where}/{IMAGES}: its sizes are invalid", code="tokenizer.unreadable"
        )
    mean, std = (_first(stated.get(name), 0.5) for name in ("image_mean", "image_std"))
    return PatchGeometry(patch * merge, fewest, most, mean, std)


def _first(values: Any, usual: float) -> float:
    """Return the number that all channels share."""
    if not isinstance(values, list) or not values:
        return usual
    first = values[0]
    return float(first) if isinstance(first, int | float) and first > 0 else usual


MOST_VIEWS = 6
"""Images of a prompt."""
_BEFORE = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
_AFTER = "<|im_end|>\n<|im_start|>assistant\n"
_OPEN, _CLOSE = "<img>", "</img>"


@dataclass(frozen=True)
class EaglePrompt:
    """Encodes prompts; all tokens before the text are the same in all of them."""

    tokenizer: TextTokenizer
    prefix: tuple[int, ...]
    """Tokens before the first image."""
    between: tuple[tuple[int, ...], ...]
    """Tokens before the second image, before the third, and so on."""
    close: int
    pad: int

    def encode(self, text: str) -> list[int]:
        """Return prefix, the tokens between images, and those after the last image."""
        found = self.tokenizer.encode(f"{_CLOSE}{[text]!s}{_AFTER}")
        return [*self.prefix, *(token for part in self.between for token in part), *found]

    def parts(self, n_views: int, length: int) -> list[slice]:
        """Return the parts of a prompt of ``length`` tokens around ``n_views`` images."""
        ends = [len(self.prefix)]
        for part in self.between:
            ends.append(ends[-1] + len(part))
        made = [slice(0, ends[0])]
        made += [slice(ends[n], ends[n + 1]) for n in range(n_views - 1)]
        return [*made, slice(ends[-1], length)]


def read_eagle_prompt(tokenizer: TextTokenizer) -> EaglePrompt:
    """Return the chat format for a tokenizer."""
    start, close = tokenizer.number(_OPEN), tokenizer.number(_CLOSE)
    prefix = tokenizer.encode(f"{_BEFORE}<image 1>{_OPEN}")
    between = [
        tokenizer.encode(f"{_CLOSE}<image {number}>{_OPEN}") for number in range(2, MOST_VIEWS + 1)
    ]
    whole = all(part[0] == close and part[-1] == start for part in between)
    if prefix[-1:] != [start] or not whole:
        raise UsageError(
            f"{tokenizer.where}: it does not keep {_OPEN} and {_CLOSE} as one token each, so it is "
            "not Eagle's",
            code="tokenizer.unsupported-template",
        )
    return EaglePrompt(
        tokenizer, tuple(prefix), tuple(tuple(part) for part in between), close, tokenizer.pad
    )


class PromptEncoder(Protocol):
    """Encodes prompts in a backbone's chat format."""

    @property
    def pad(self) -> int:
        """The token of padding."""

    def encode(self, text: str) -> list[int]:
        """Return the tokens of an instruction's prompt."""


def encode_padded(prompt_inputs: PromptInputs, prompt: PromptEncoder, length: int) -> PromptInputs:
    """Add tokens and mask of all prompts, padded to ``length``."""
    tokens = np.full((len(prompt_inputs.words), length), prompt.pad, np.int64)
    mask = np.zeros(tokens.shape, np.bool_)
    for row, text in enumerate(prompt_inputs.words):
        ids = prompt.encode(text)
        if len(ids) > length:
            raise UsageError(
                f"{text[:60]!r} has {len(ids)} tokens (at most {length}: "
                "--policy.tokenizer_max_length)",
                code="policy.prompt-too-long",
            )
        tokens[row, : len(ids)], mask[row, : len(ids)] = ids, True
    return replace(
        prompt_inputs, arrays={**prompt_inputs.arrays, LANGUAGE_TOKENS: tokens, LANGUAGE_MASK: mask}
    )


StepT = TypeVar("StepT", bound=ProcessorStep)


def only_step(steps: Sequence[ProcessorStep], kind: type[StepT]) -> StepT:
    """Return the step of ``kind``, which a preprocessor of GR00T has once."""
    found = [step for step in steps if isinstance(step, kind)]
    if len(found) != 1:
        raise UsageError(
            f"GR00T's preprocessor needs one {kind.registry_name}, found {len(found)}",
            code="checkpoint.invalid-pipeline",
        )
    return found[0]
