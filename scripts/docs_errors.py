"""Lines of the page of error codes, read from the calls that raise each code."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from proctor import errors
from proctor.errors import ProctorError

SOURCES = Path(__file__).resolve().parents[1] / "src" / "proctor"
MOST_MESSAGES, LONGEST_MESSAGE = 3, 160
INTRODUCTION = """\
# Error codes

Every error of Proctor has a stable code: `error.code` in Python, where `error` is a
`proctor.errors.ProctorError`. The wording of a message may change; its code does not.

The column *message* shows what the error says, with `…` for names and values. Some codes have
several messages.

An error ends a command with exit code 2. For `UsageError` and its subclasses that is usually
before anything starts. Other errors, such as a policy that raises or a full disk, may also end a
run that has begun: its finished episodes are kept. `SimulatorUnavailable` has exit code 1.

```python
import proctor
from proctor.errors import UsageError

try:
    proctor.evaluate("expert", "fake", n_episode=4)
except UsageError as error:
    print(error.code)  # flag.unknown
```
"""


@dataclass
class CodeUse:
    """Where and how one code is used: error classes, packages and messages."""

    kinds: set[str] = field(default_factory=set)
    packages: set[str] = field(default_factory=set)
    messages: list[str] = field(default_factory=list)


def error_page() -> Iterator[str]:
    """Yield the lines of the page: one table of codes for each area."""
    yield INTRODUCTION
    found = error_codes()
    for area in sorted({code.partition(".")[0] for code in found}):
        yield from (f"## {area}", "", "| code | message | class | raised in |", "|---|---|---|---|")
        for code in sorted(code for code in found if code.partition(".")[0] == area):
            use = found[code]
            kinds, packages = _listed(use.kinds), _listed(use.packages)
            yield f"| `{code}` | {_messages(use.messages)} | {kinds} | {packages} |"
        yield ""


def error_codes() -> dict[str, CodeUse]:
    """Return the classes, packages and messages of every code."""
    found: dict[str, CodeUse] = defaultdict(CodeUse)
    for path in sorted(SOURCES.rglob("*.py")):
        package = path.relative_to(SOURCES).parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                for code, message in _raised(node):
                    found[code].kinds.add(node.func.id)
                    found[code].packages.add(package)
                    if message.strip("… ") and message not in found[code].messages:
                        found[code].messages.append(message)
    for name, kind in inspect.getmembers(errors, inspect.isclass):
        if issubclass(kind, ProctorError) and kind.default_code:
            use = found[kind.default_code]
            use.kinds.add(name)
            use.packages.add("errors")
            use.messages.insert(0, (inspect.getdoc(kind) or "").partition("\n")[0])
    return found


def _raised(call: ast.Call) -> Iterator[tuple[str, str]]:
    """Yield the code of a call and the message that goes with it; two for ``a if b else c``."""
    codes = next((branches(word.value) for word in call.keywords if word.arg == "code"), [])
    texts = [gist(text) for text in branches(call.args[0])] if call.args else [""]
    for number, code in enumerate(codes):
        if isinstance(code, ast.Constant) and code.value:
            yield str(code.value), texts[min(number, len(texts) - 1)]


def branches(node: ast.expr) -> list[ast.expr]:
    """Return the two results of a conditional expression, or the expression itself."""
    return [node.body, node.orelse] if isinstance(node, ast.IfExp) else [node]


def gist(node: ast.expr) -> str:
    """Return the text of a string expression, with ``…`` for every value in it."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        parts = (part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
        return re.sub("…[… ]*…", "…", "".join(map(str, parts))).removeprefix("…: ").strip()
    if isinstance(node, ast.BinOp):
        return f"{gist(node.left)}{gist(node.right)}"
    return ""


def _messages(texts: list[str]) -> str:
    shown = [textwrap.shorten(text, LONGEST_MESSAGE, placeholder=" …") for text in texts]
    more = f" *({len(shown) - MOST_MESSAGES} more)*" if len(shown) > MOST_MESSAGES else ""
    return "<br>".join(f"“{escaped(text)}”" for text in shown[:MOST_MESSAGES]) + more


def escaped(text: str) -> str:
    """Return ``text`` for a cell of a Markdown table, with every character shown as it is."""
    return re.sub(r"([\\`*_{}\[\]<>#|$])", r"\\\1", re.sub(r"\s+", " ", text))


def _listed(names: set[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))
