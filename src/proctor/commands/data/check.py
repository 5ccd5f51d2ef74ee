"""``proctor data check``: find the faults of a dataset, and repair derived metadata."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from proctor.commands.data.arguments import DatasetCommand, find_dataset
from proctor.errors import strip_control_codes
from proctor.settings import setting

if TYPE_CHECKING:
    from proctor.datasets.check import CheckReport

_LONGEST = 4000


@dataclass(kw_only=True)
class DataCheckCommand(DatasetCommand):
    """Find faults in a dataset, with the commands that mend them.

    Checks everything that readers rely on: totals, tasks, episodes, the values and timestamp of
    every frame, every video from its first frame to its last, statistics, and unreferenced files.
    Each finding names the command that mends it, if there is one. Only --mend changes files.

    Exit code: 0 without errors (readers cope with warnings), 1 with errors, 2 without a dataset.
    """

    fast: bool = setting(False, "decode no frames; trust the duration in every video's header")
    json: bool = setting(False, "print the findings as JSON, for scripts")
    mend: bool = setting(
        False,
        "repair derived metadata before the checks: the totals of info.json, which then "
        "count every complete episode, and the tasks' order and indices",
    )

    def run(self) -> int:
        """Check the dataset, print the findings and return the exit code."""
        root = find_dataset(self.dataset)
        from rich.console import Console

        from proctor.datasets.check import check, repair

        if self.mend:
            for done in repair(root) or ["there is nothing that follows from the rest"]:
                print(f"mend: {strip_control_codes(done)}", flush=True)
        with Console(stderr=True).status("looking") as status:
            checked = check(root, decode=not self.fast, tell=status.update)
        print(_as_json(checked) if self.json else "\n".join(_lines(checked)))
        return 1 if checked.errors else 0


def _as_json(checked: CheckReport) -> str:
    info = checked.info
    said = {
        "path": str(checked.root),
        "version": None if info is None else info.version,
        "episodes": None if info is None else info.total_episodes,
        "frames": None if info is None else info.total_frames,
        "decoded": checked.decoded and checked.n_decoded >= checked.n_images,
        "images": checked.n_images,
        "images_decoded": checked.n_decoded,
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
    cameras = "no cameras"
    if info.cameras:
        cameras = f"{_plural(len(info.cameras), 'camera')}, {_decoded_text(checked)}"
    return (
        f"{_shown(str(checked.root))}: {info.version}, {_plural(info.total_episodes, 'episode')}, "
        f"{_plural(info.total_frames, 'frame')}, {cameras}"
    )


def _decoded_text(checked: CheckReport) -> str:
    """Return how many of the images were decoded."""
    if checked.n_images == 0:
        return "no images"
    if checked.n_decoded == 0:
        return "no image decoded"
    if checked.n_decoded >= checked.n_images:
        return "every image decoded"
    return f"{checked.n_decoded:,} of {checked.n_images:,} images decoded"


def _shown(text: str) -> str:
    return strip_control_codes(text, _LONGEST)


def _plural(n: int, word: str) -> str:
    return f"{n:,} {word}{'' if n == 1 else 's'}"
