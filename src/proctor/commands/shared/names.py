"""The commands of ``proctor``: a line about each, and its module."""

from __future__ import annotations

COMMANDS = {
    "eval": "evaluate a policy on a benchmark: success rates with confidence intervals",
    "record": "record a policy's or a robot's episodes as demonstrations, in a LeRobot dataset",
    "replay": "repeat a recorded episode on a robot",
    "report": "write the page of a run: success rates, charts, timeline and episodes",
    "audit": "run a sample of a run's episodes again, one by one, and compare",
    "compare": "compare runs episode by episode, with significance tests",
    "reproduce": "evaluate a published checkpoint, and check the published success rate",
    "plan": "how many episodes a question needs, and how long they take",
    "view": "show runs in the browser: a list, and the page of each run",
    "train": "train a policy on demonstrations; it can be stopped and resumed at any time",
    "train-online": "reinforcement learning with demonstrations and interventions (HIL-SERL)",
    "serve": "serve a policy (openpi, vla-eval, GR00T, LeRobot protocols), batching all clients",
    "teleoperate": "drive a robot with a leader arm or another controller",
    "rollout": "let a policy drive a robot, and record all, highlights, episodes or corrections",
    "robot-host": "serve a robot to another computer, as the LeKiwi host of LeRobot does",
    "calibrate": "calibrate a robot or a teleoperator, with a person's help",
    "setup-motors": "give the motors of a new arm their ids and baud rate",
    "find-port": "list serial ports and the motors on them, or find the port of an adapter",
    "find-cameras": "list cameras with their modes, and save an image of each",
    "data": "inspect, check, edit, convert, upload and download LeRobot datasets",
    "benchmarks": "install benchmarks that need an interpreter of their own; check and remove them",
    "list": "list benchmarks, their tasks with instructions and horizons, policies and devices",
    "doctor": "check this machine: what works, how fast it renders, how to mend the rest",
    "info": "print versions, cores, graphics and extras of this machine",
    "completion": "print a script that completes commands and flags in bash, zsh or fish",
}

_ROOMS = {
    "evaluation": ("eval", "report", "audit", "compare", "reproduce", "plan", "view", "serve"),
    "training": ("record", "train", "train-online"),
    "robots": (
        *("replay", "teleoperate", "rollout", "robot-host"),
        *("calibrate", "setup-motors", "find-port", "find-cameras"),
    ),
}
"""Folders of ``commands``. ``data`` and ``benchmarks`` are folders with a verb per module, and the
other commands stand in ``commands`` itself."""


def command_module(command: str) -> str:
    """Return the name of a command's module."""
    if command in ("data", "benchmarks"):
        return f"proctor.commands.{command}.command"
    room = next((f"{room}." for room, names in _ROOMS.items() if command in names), "")
    return f"proctor.commands.{room}{command.replace('-', '_')}"
