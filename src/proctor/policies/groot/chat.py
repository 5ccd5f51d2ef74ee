"""The backbone's chat format: one user message with images and a text.

    <|im_start|>user\\n<|vision_start|>image<|vision_end|>...text<|im_end|>\\n

A tokenizer's chat template is a program and is not run. It is read as text for one thing: a system
message that it puts before the first message.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from proctor.errors import UsageError
from proctor.policies.groot.images import PatchGeometry
from proctor.policies.lerobot.tokenizer import SETTINGS, TextTokenizer

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
