"""Eagle's chat format: a system message, and one user message with images and a text.

    <|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n<|im_start|>user\\n
    <image 1><img>image</img><image 2><img>image</img>['text']<|im_end|>\\n<|im_start|>assistant\\n

The text is the instruction as a Python list, as in NVIDIA's training. How many images there are is
not known when a prompt is encoded. So a prompt has the tokens between images for ``MOST_VIEWS``
images, and the network takes those that it needs.
"""

from __future__ import annotations

from dataclasses import dataclass

from proctor.errors import UsageError
from proctor.policies.lerobot.tokenizer import TextTokenizer

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
        asked = str([text])
        found = self.tokenizer.encode(f"{_CLOSE}{asked}{_AFTER}")
        return [*self.prefix, *(token for part in self.between for token in part), *found]

    def parts(self, n_views: int, length: int) -> list[slice]:
        """Return the parts of a prompt of ``length`` tokens around ``n_views`` images."""
        ends = [len(self.prefix)]
        for part in self.between:
            ends.append(ends[-1] + len(part))
        made = [slice(0, ends[0])]
        made += [slice(ends[n], ends[n + 1]) for n in range(n_views - 1)]
        return [*made, slice(ends[-1], length)]


def read_prompt(tokenizer: TextTokenizer) -> EaglePrompt:
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
