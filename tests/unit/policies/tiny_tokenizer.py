"""A tokenizer of a few words, made here: a word is a token, one that is not known is <unk>."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

BEGIN, END, PAD, UNKNOWN = "<s>", "</s>", "<pad>", "<unk>"
_WORDS = """
    push pull the puck red blue pick up open door Task State Action : ; , 0 1 2 3 127 128 192 255
"""
VOCABULARY = {word: n for n, word in enumerate([PAD, BEGIN, END, UNKNOWN, "\n", *_WORDS.split()])}


def split(pattern: str, behavior: str, kind: str = "Regex") -> dict[str, Any]:
    """Return the rule that cuts a text where ``pattern`` is."""
    how = {"pattern": {kind: pattern}, "behavior": behavior, "invert": False}
    return {"type": "Split", **how}


def rules(**changes: Any) -> dict[str, Any]:
    """Return what tokenizer.json says: <s> words </s>, a new line is a word."""
    specials = [PAD, BEGIN, END, UNKNOWN]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    template: list[Any] = [{"SpecialToken": {"id": t, "type_id": 0}} for t in (BEGIN, END)]
    template.insert(1, {"Sequence": {"id": "A", "type_id": 0}})
    said = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": VOCABULARY[t], "content": t, "special": True, **flags} for t in specials
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                split(" ", "Removed", "String"),
                *(split(mark, "Isolated", "String") for mark in "\n:;,"),
            ],
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": template,
            "pair": [*template, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {
                t: {"id": t, "ids": [VOCABULARY[t]], "tokens": [t]} for t in (BEGIN, END)
            },
        },
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": VOCABULARY, "unk_token": UNKNOWN},
    }
    return said | changes


def write_tokenizer(folder: Path, *, settings: bool = True, **changes: Any) -> Path:
    """Write the files of a tokenizer into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(rules(**changes)))
    if settings:
        said = {"pad_token": PAD, "bos_token": {"content": BEGIN}, "eos_token": END}
        (folder / "tokenizer_config.json").write_text(json.dumps(said))
    return folder


HALF = {
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}


def write_clip(folder: Path, **changes: Any) -> Path:
    """Write what says the sizes of a tiny CLIP, and its tokenizer, into ``folder``."""
    folder = write_tokenizer(folder)
    text = HALF | {
        "vocab_size": len(VOCABULARY),
        "max_position_embeddings": 12,
        "eos_token_id": VOCABULARY["</s>"],
    }
    told = {"model_type": "clip", "text_config": text}
    told |= {"vision_config": HALF | {"image_size": 32, "patch_size": 16}}
    (folder / "config.json").write_text(json.dumps(told | changes))
    return folder
