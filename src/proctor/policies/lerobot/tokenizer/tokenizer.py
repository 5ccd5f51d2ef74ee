"""Load tokenizers from a checkpoint, a folder named by a flag, or the Hub; never run their code.

A tokenizer is a ``tokenizer.json``, which the `tokenizers` library reads as data, and the special
tokens of ``tokenizer_config.json``. Both may come from anywhere: sizes are bounded, and rules that
blow up a text or hold unknown regular expressions are refused (``tokenizer_rules``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proctor.errors import (
    FailedToLoad,
    HubUnreachable,
    MissingExtra,
    UsageError,
    strip_control_codes,
)
from proctor.policies.lerobot.checkpoint.location import cannot_read
from proctor.policies.lerobot.tokenizer.rules import MATCHED_LETTERS, check_rules, patterns_in
from proctor.system.files import read_regular_file
from proctor.system.hub.repositories import download
from proctor.system.platform.optional import LOAD_ERRORS, import_failure

FOLDER = "tokenizer"
"""Folder of a tokenizer inside a checkpoint, if it is not beside config.json."""
TOKENIZER, SETTINGS, SPECIALS = "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"
PROCESSOR = "processor_config.json"
"""Settings of a tokenizer of other data than text, such as FAST's."""
FILES = (TOKENIZER, SETTINGS, SPECIALS, PROCESSOR)
MOST_TOKENS, MOST_LETTERS = 4096, 100_000
"""Longest instruction or tokenized action, in tokens and in characters."""
_HINT = (
    f"put its {TOKENIZER} and {SETTINGS} beside the checkpoint's config.json, or name a folder "
    "with them: --policy.tokenizer=DIR"
)
_MOST_NAME = 300


class TextTokenizer:
    """A text tokenizer made from its files; pickled as these files."""

    def __init__(self, files: Mapping[str, bytes], where: str) -> None:
        """Read a tokenizer; ``where`` names it in errors."""
        self.files, self.where = dict(files), where
        rules = _object(files[TOKENIZER], f"{where}/{TOKENIZER}")
        check_rules(rules, f"{where}/{TOKENIZER}")
        self._most = MATCHED_LETTERS if patterns_in(rules) else MOST_LETTERS
        self._said: dict[str, Any] = {}
        for name in (SPECIALS, SETTINGS):  # the second takes precedence
            if name in files:
                self._said |= _object(files[name], f"{where}/{name}")
        self._padding = rules.get("padding")
        self._tokenizer = _built(files[TOKENIZER].decode(), f"{where}/{TOKENIZER}")
        self._tokenizer.no_padding()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as files."""
        return TextTokenizer, (self.files, self.where)

    def encode(self, text: str, most: int | None = None, *, specials: bool = True) -> list[int]:
        """Return the token ids of ``text``, truncated to ``most``; by default with specials."""
        if len(text) > self._most:
            raise UsageError(
                f"the instruction has {len(text)} characters (at most {self._most})",
                code="policy.prompt-too-long",
            )
        if most is None:
            self._tokenizer.no_truncation()
        else:
            side = "left" if self._said.get("truncation_side") == "left" else "right"
            self._tokenizer.enable_truncation(most, direction=side)
        with _telling(
            f"{self.where}/{TOKENIZER} has no numbers for {strip_control_codes(text, 60)!r}"
        ):
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=specials).ids
        return ids

    def special(self, name: str) -> int:
        """Return the id of a special token, such as ``pad_token`` or ``eos_token``."""
        said = self._said.get(name)
        text = said.get("content") if isinstance(said, dict) else said
        number = self._tokenizer.token_to_id(text) if isinstance(text, str) else None
        if number is None:
            raise UsageError(
                f"{self.where}: no {name} (its {SETTINGS} says which, and belongs beside it)",
                code="tokenizer.missing-token",
            )
        return int(number)

    @property
    def pad(self) -> int:
        """The id of the padding token."""
        if "pad_token" not in self._said and isinstance(self._padding, dict):
            return int(self._padding.get("pad_id", 0))
        return self.special("pad_token")

    @property
    def size(self) -> int:
        """Vocabulary size, with special tokens."""
        return int(self._tokenizer.get_vocab_size())

    @property
    def plain_size(self) -> int:
        """Vocabulary size without added tokens."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=False))

    def number(self, token: str) -> int:
        """Return the id of a token."""
        number = self._tokenizer.token_to_id(token)
        if number is None:
            raise UsageError(
                f"{self.where}: it has no token {token!r}", code="tokenizer.missing-token"
            )
        return int(number)

    def decode(self, ids: list[int]) -> str:
        """Return the text of token ids; unknown ids are left out.

        Raises:
            ValueError: the text would be too long.
        """
        if sum(len(self._tokenizer.id_to_token(n) or "") for n in ids) > MOST_LETTERS:
            raise ValueError(f"more than {MOST_LETTERS} letters")
        text: str = self._tokenizer.decode(ids, skip_special_tokens=False)
        return text


@dataclass(frozen=True)
class Tokenizers:
    """Finds the tokenizers of a policy."""

    folder: Path | None = None
    """The policy's checkpoint."""
    given: str | None = None
    """Folder or Hub id of --policy.tokenizer."""
    found: dict[tuple[str | None, str], TextTokenizer] = field(default_factory=dict)
    """Tokenizers that were already loaded."""

    def find(
        self, name: str | None, inside: str = FOLDER, also: Sequence[str] = ()
    ) -> TextTokenizer:
        """Return the tokenizer that a checkpoint calls ``name``, or has in its folder ``inside``.

        Searched in this order: --policy.tokenizer, the checkpoint, a folder or Hub repository of
        that name. ``also`` names further files beside it to read.
        """
        if (name, inside) not in self.found:
            wanted = (*FILES, *also)
            folder = self._folder(name, inside, wanted)
            files = {file: _bytes(folder / file) for file in wanted if (folder / file).is_file()}
            self.found[name, inside] = TextTokenizer(files, str(folder))
        return self.found[name, inside]

    def _folder(self, name: str | None, inside: str, files: Sequence[str]) -> Path:
        if self.given is not None:
            return _folder_of(self.given, f"--policy.tokenizer={self.given}", files)
        own = [] if self.folder is None else [self.folder / inside]
        if self.folder is not None and inside == FOLDER:
            own.append(self.folder)
        for folder in own:
            if (folder / TOKENIZER).is_file():
                return folder
        if not name or len(name) > _MOST_NAME:
            raise UsageError(
                f"the policy does not name its tokenizer: {_HINT}", code="tokenizer.not-found"
            )
        return _folder_of(name, f"the policy's tokenizer {strip_control_codes(name)}", files)


def _folder_of(name: str, what: str, files: Sequence[str]) -> Path:
    """Return the folder of a tokenizer, local or downloaded from the Hub."""
    try:
        here = Path(name).expanduser()
        folder = here if here.is_dir() else download(name, None, files)
    except (OSError, ValueError, RuntimeError, HubUnreachable):
        raise UsageError(
            f"{what} is not here and the Hub cannot be reached: {_HINT}", code="tokenizer.not-found"
        ) from None
    except (MissingExtra, FailedToLoad):
        raise
    except UsageError as error:
        raise UsageError(f"{what}: {error}: {_HINT}", code="tokenizer.not-found") from None
    if not (folder / TOKENIZER).is_file():
        raise UsageError(
            f"{what} has no {TOKENIZER} in {folder}: {_HINT}", code="tokenizer.not-found"
        )
    return folder


def _bytes(file: Path) -> bytes:
    try:
        return read_regular_file(file)
    except OSError as error:
        raise cannot_read(file, error, "tokenizer.unreadable") from None


def _object(raw: bytes, where: str) -> dict[str, Any]:
    try:
        said = json.loads(raw, object_pairs_hook=_each_once)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{where} is not JSON: {strip_control_codes(str(error), 200)}",
            code="tokenizer.unreadable",
        ) from None
    if not isinstance(said, dict):
        raise UsageError(f"{where} holds no JSON object", code="tokenizer.unreadable")
    return said


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; refuse duplicate keys, which libraries resolve differently."""
    said = dict(pairs)
    if len(said) < len(pairs):
        raise ValueError("a name is there twice in one object")
    return said


def _built(text: str, where: str) -> Any:
    """Return the library's tokenizer from JSON text."""
    try:
        from tokenizers import Tokenizer
    except LOAD_ERRORS as error:
        raise import_failure(error, "tokenizers", "vla") from None
    with _telling(f"{where} is no tokenizer"):
        return Tokenizer.from_str(text)


@contextmanager
def _telling(what: str) -> Iterator[None]:
    """Turn the library's errors into one-line errors."""
    try:
        yield
    except BaseException as error:
        # The library may raise a Rust panic, which is not an Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise UsageError(
            f"{what}: {strip_control_codes(str(error), 200)}", code="tokenizer.unreadable"
        ) from None
