"""A LeRobot interpreter that opens datasets on request."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

OPENED_BY_LEROBOT = """
import json, sys
from lerobot.datasets.lerobot_dataset import LeRobotDataset
print("ready", flush=True)
for line in sys.stdin:
    try:
        dataset = LeRobotDataset("kills/left", root=line.strip(), video_backend="pyav")
        first, last = dataset[0], dataset[len(dataset) - 1]
        said = {"episodes": dataset.num_episodes, "frames": len(dataset),
                "last": [float(x) for x in last["observation.state"]], "task": last["task"]}
    except BaseException as error:
        said = {"error": f"{type(error).__name__}: {error}"[:300]}
    print(json.dumps(said), flush=True)
"""


class LeRobotOpener:
    """A LeRobot process that opens one dataset per request."""

    def __init__(self, python: str) -> None:
        home = tempfile.mkdtemp()
        self._process = subprocess.Popen(  # noqa: S603  the interpreter that the user named
            [python, "-c", OPENED_BY_LEROBOT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"HF_HOME": home, "HF_HUB_OFFLINE": "1"},
        )
        self._line()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        while line and not line.startswith(("ready", "{")):
            line = self._process.stdout.readline()
        return line

    def opened(self, root: Path) -> dict[str, Any]:
        """Return the episodes and frames that LeRobot finds in a copy, or an error."""
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(root, Path(folder) / "left")
            assert self._process.stdin is not None
            self._process.stdin.write(f"{folder}/left\n")
            self._process.stdin.flush()
            found: dict[str, Any] = json.loads(self._line())
        return found
