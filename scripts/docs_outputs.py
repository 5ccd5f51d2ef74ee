"""`make docs-outputs`: run the commands that the documentation shows, and write their output.

    .venv/bin/python scripts/docs_outputs.py [--check] [PAGE ...]

A block of the language ``console`` holds commands, each after ``$ ``, and their output:

    ```console
    $ proctor eval --policy.type=random --env.type=fake --output_dir=outputs/first
    ...
    ```

The script runs a page's blocks from top to bottom in one new folder, except that `make` runs in the
clone. ``# Ctrl-C after 6 s`` at the end of a command interrupts it then. A page that shows how to
write a plug-in is run beside that file. Of progress lines it keeps the last. ``--check`` changes
nothing: it fails where the output differs in more than times and speeds.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PROGRESS = re.compile(r"(?:recorded )?\d[\d,]*/\d[\d,]* |recording episode \d+ of \d+$")
VARYING = re.compile(
    r"\d+-\d\d-\d\d_\d\d-\d\d-\d\d|\d+:\d\d|[\d,.]+ (?:steps/s|ms|s|min|MB|GB)\b|batch [\d.]+"
)
"""What differs from run to run: dates in names, times, speeds, sizes, batches."""
LIMIT_S = 1200
INTERRUPT = re.compile(r" +# Ctrl-C after (\d+) s$")
PLUGINS = {"own_benchmark.md": "my_package/track.py", "own_policy.md": "my_package/circles.py"}
"""Files that pages let the reader write: their first block of Python."""


class CommandFailed(Exception):
    """A command of a page did not exit as the page needs."""


def main(words: list[str]) -> int:
    """Rewrite the pages, or compare them with new outputs."""
    parser = argparse.ArgumentParser(description="Run the commands that the documentation shows.")
    parser.add_argument("pages", nargs="*", type=Path, help="Markdown files; default: all")
    parser.add_argument("--check", action="store_true", help="compare, change nothing")
    arguments = parser.parse_args(words)
    stale = []
    for page in arguments.pages or pages_with_outputs():
        old = page.read_text(encoding="utf-8")
        print(f"{page}: {len(commands(old))} commands", flush=True)
        new = with_outputs(old, PLUGINS.get(page.name))
        if arguments.check and comparable(new) != comparable(old):
            stale.append(str(page))
        elif not arguments.check and new != old:
            page.write_text(new, encoding="utf-8")
    if stale:
        print(f"outputs differ in {', '.join(stale)}: run make docs-outputs")
    return 1 if stale else 0


def pages_with_outputs() -> list[Path]:
    """Return the README and the pages of the site that hold a console block."""
    built = ROOT / "docs" / "_build"
    site = [page for page in sorted((ROOT / "docs").rglob("*.md")) if built not in page.parents]
    return [page for page in [ROOT / "README.md", *site] if commands(page.read_text("utf-8"))]


def commands(text: str) -> list[str]:
    """Return the commands of a page's console blocks, in order."""
    return [command for block in BLOCK.findall(text) for command in block_commands(block)]


def block_commands(block: str) -> list[str]:
    """Return the commands of one block; a backslash continues a command on the next line."""
    return re.findall(r"^\$ ((?:.*\\\n)*.*)$", block, re.MULTILINE)


def with_outputs(text: str, plugin: str | None = None) -> str:
    """Return the page with the outputs of its commands as they are now.

    Args:
        text: the page.
        plugin: file that the page's first block of Python is saved as.
    """
    with tempfile.TemporaryDirectory(prefix="proctor-docs-") as name:
        folder = Path(name)
        if plugin is not None:
            (code,) = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)[:1]
            (folder / plugin).parent.mkdir(parents=True)
            (folder / plugin).write_text(code, encoding="utf-8")
        return BLOCK.sub(lambda found: "".join(new_block(found[1], folder)), text)


def new_block(block: str, folder: Path) -> Iterator[str]:
    """Run a block's commands; yield the block's lines."""
    yield "```console\n"
    for command in block_commands(block):
        yield f"$ {command}\n"
        for line in output_of(command, folder):
            yield f"{line}\n"
    yield "```"


def output_of(command: str, folder: Path) -> list[str]:
    """Run a command, and return the lines of its output without intermediate progress."""
    where = ROOT if command.startswith("make ") else folder
    environment = dict(os.environ, NO_COLOR="1", COLUMNS="100", HOME=str(folder))
    environment["PATH"] = f"{ROOT / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    interrupt = INTERRUPT.search(command)
    shell = [shutil.which("bash") or "bash", "-o", "pipefail", "-c", command]
    process = subprocess.Popen(  # noqa: S603  commands of our own pages
        shell, cwd=where, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    try:
        said, _ = process.communicate(timeout=float(interrupt[1]) if interrupt else LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGINT if interrupt else signal.SIGKILL)
        said, _ = process.communicate(timeout=LIMIT_S)
    # 0: done; 1: a gate that is not met; 2: bad input that the page shows; 130: Ctrl-C.
    if process.returncode not in (0, 1, 2, 130) or "Traceback" in said:
        raise CommandFailed(f"exit code {process.returncode} of {command}:\n{said}")
    return without_progress(said.replace(str(folder), "~").rstrip("\n").splitlines())


def without_progress(lines: list[str]) -> list[str]:
    """Return the lines without progress lines that another progress line follows."""
    return [
        line.rstrip()
        for line, after in zip_longest(lines, lines[1:], fillvalue="")
        if not (PROGRESS.match(line) and PROGRESS.match(after))
    ]


def comparable(text: str) -> str:
    """Return a page's text without times and speeds."""
    return re.sub(r" +", " ", VARYING.sub("#", text))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
