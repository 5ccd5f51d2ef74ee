"""``proctor data check``: what is wrong with a dataset, and how to mend it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from proctor.commands.data_arguments import parse_args
from proctor.errors import strip_control_codes

if TYPE_CHECKING:
    from proctor.datasets.check import CheckReport

_USAGE = """\
proctor data check DATASET [--fast] [--json] [--mend]

Looks at everything in a dataset that readers rely on: totals, tasks, episodes, every frame's
numbers and time, every video from its first frame to its last, statistics, files that nothing
names. Each finding comes with the command that mends it, where there is one. Nothing is changed.

Exit code: 0 without errors (warnings are for people: readers get along with those), 1 with errors,
2 where there is no dataset.

  --fast  decode nothing: videos are asked how long they say they are
  --json  print the findings as JSON
  --mend  first rewrite what follows from the rest: the totals of info.json, and the order and index
          of the tasks
"""
_LONGEST = 4000


def run(words: list[str]) -> int:
    """Run the verb and return its exit code."""
    given = parse_args("check", _USAGE, words, (), switches=("fast", "json", "mend"))
    if given is None:
        return 0
    root = given.dataset()
    from rich.console import Console

    from proctor.datasets.check import check, repair

    if given.switch("mend"):
        for done in repair(root) or ["there is nothing that follows from the rest"]:
            print(f"mend: {strip_control_codes(done)}", flush=True)
    with Console(stderr=True).status("looking") as status:
        checked = check(root, decode=not given.switch("fast"), tell=status.update)
    print(_as_json(checked) if given.switch("json") else "\n".join(_lines(checked)))
    return 1 if checked.errors else 0


def _as_json(checked: CheckReport) -> str:
    info = checked.info
    said = {
        "path": str(checked.root),
        "version": None if info is None else info.version,
        "episodes": None if info is None else info.total_episodes,
        "frames": None if info is None else info.total_frames,
        "decoded": checked.decoded,
        "errors": checked.errors,
        "warnings": len(checked.findings) - checked.errors,
        "findings": [
            {
                "level": finding.level.value,
                "kind": finding.kind,
                "what": finding.what,
                "where": finding.where,
                "mend": finding.mend or None,
            }
            for finding in checked.findings
        ],
    }
    return json.dumps(said, indent=2)


def _lines(checked: CheckReport) -> list[str]:
    lines = [] if checked.info is None else [_heading(checked)]
    for finding in checked.findings:
        lines.append(f"{finding.level.value:<8} {finding.kind:<18} {_shown(finding.where)}")
        lines.append(f"         {_shown(finding.what)}")
        if finding.mend:
            lines.append(f"         mend: {_shown(finding.mend)}")
    warnings = len(checked.findings) - checked.errors
    if not checked.findings:
        lines.append("nothing is wrong")
    else:
        lines.append(f"{_plural(checked.errors, 'error')}, {_plural(warnings, 'warning')}")
    return lines


def _heading(checked: CheckReport) -> str:
    assert checked.info is not None
    info = checked.info
    how = "every picture decoded" if checked.decoded else "no picture decoded"
    cameras = f"{_plural(len(info.cameras), 'camera')}, {how}" if info.cameras else "no cameras"
    return (
        f"{_shown(str(checked.root))}: {info.version}, {_plural(info.total_episodes, 'episode')}, "
        f"{_plural(info.total_frames, 'frame')}, {cameras}"
    )


def _shown(text: str) -> str:
    return strip_control_codes(text, _LONGEST)


def _plural(n: int, word: str) -> str:
    return f"{n:,} {word}{'' if n == 1 else 's'}"
