"""Lines that the commands of robots share: messages, lost replies, the recorded dataset."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

from proctor.commands.data.hub import push_and_name
from proctor.errors import strip_control_codes
from proctor.system.files import display_path

if TYPE_CHECKING:
    from proctor.config.robot_recording import RobotDatasetSettings
    from proctor.control.recording.open_recording import ClosedRecording
    from proctor.robots.base import DeviceHealth


def say(line: str) -> None:
    """Print a message to standard error."""
    print(strip_control_codes(line), file=sys.stderr, flush=True)


def episodes(count: int) -> str:
    """Return a number of episodes in words, as "1 episode"."""
    return f"{count} episode{'' if count == 1 else 's'}"


def lost_replies(health: DeviceHealth) -> list[str]:
    """Return the line of replies that were lost, if there are any."""
    lost = {motor: n for motor, n in health.lost_replies.items() if n}
    counts = ", ".join(f"{motor} {n}" for motor, n in lost.items())
    return [f"lost replies of motors, read again: {counts}"] if lost else []


def print_dataset(saved: ClosedRecording) -> bool:
    """Print where the dataset is; return whether it has episodes."""
    root = str(display_path(saved.root))
    if saved.is_removed:
        print(f"no episode was recorded; {root} was not created")
        return False
    print(f"dataset: {root}")
    print(f"look at it: proctor data view {shlex.quote(root)}")
    return True


def push_dataset(saved: ClosedRecording, settings: RobotDatasetSettings) -> None:
    """Upload the dataset, if the flags ask for it and it has episodes.

    Raises:
        HubError: the upload failed.
    """
    if settings.push_to_hub and saved.n_episodes:
        assert settings.repo_id is not None
        address = push_and_name(saved.root, settings.repo_id, private=settings.private)
        print(f"uploaded: {strip_control_codes(address)}")
