"""``proctor list``: the available benchmarks, tasks, policies, robots and other devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from proctor import plugins
from proctor.benchmarks.base import Benchmark, BenchmarkPlugin
from proctor.errors import MissingExtra, UsageError, did_you_mean, strip_control_codes

if TYPE_CHECKING:
    from rich.table import Table

    from proctor.types import Task

_DEVICES = {"robots": "robot", "teleoperators": "teleoperator", "cameras": "camera"}
"""Topics of devices, and the heading of their tables."""
_TOPICS = ("benchmarks", "tasks", "policies", *_DEVICES)
_USAGE = """\
proctor list [benchmarks | policies | robots | teleoperators | cameras |
              tasks [BENCHMARK [TASK_OR_GROUP]] [--env.FLAG=VALUE ...]]

List the values of --env.type, --env.task, --policy.type, --robot.type, --teleop.type and of a
camera's type: benchmarks with their groups of tasks, tasks with their instructions, ids in each
group and horizons, policies and devices. No simulator is started and no device is opened.

  proctor list tasks metaworld hard
  proctor list tasks --env.type=libero --env.task=libero_10 --env.protocol=openpi
"""


@dataclass
class _Listed:
    """A task, and its id in each group."""

    task: Task
    groups: dict[str, int] = field(default_factory=dict)


def run(words: list[str]) -> int:
    """Run the command and return its exit code."""
    from proctor.config.flags.parsing import split_argv

    positional, flags = split_argv(words, {"help", "env.trust_remote_code"})
    if "help" in flags:
        print(_USAGE, end="")
        return 0
    topic, *rest = positional or [""]
    if topic not in ("", *_TOPICS):
        near = did_you_mean(topic, _TOPICS)
        raise UsageError(
            f"list: no {topic!r}{near} (choose {', '.join(_TOPICS)})", code="argument.unknown"
        )
    if topic != "tasks" and (rest or flags):
        named = rest[0] if rest else f"--{next(iter(flags))}"
        raise UsageError(
            f"unexpected {named!r}; only `proctor list tasks` takes more", code="argument.count"
        )
    if topic == "tasks":
        _list_tasks(_env_settings(rest, flags))
        return 0
    tables = {"benchmarks": _benchmark_table, "policies": _policy_table}
    tables |= {kind: partial(_device_table, kind) for kind in _DEVICES}
    for place, (kind, make) in enumerate(tables.items()):
        if not topic and place:
            print()
        if topic in ("", kind):
            _show(make())
    if not topic:
        print(
            "\ntasks: proctor list tasks [BENCHMARK]; flags: proctor eval --help env|policy NAME, "
            "proctor teleoperate --help robot|teleop NAME"
        )
    return 0


def _env_settings(words: list[str], flags: Mapping[str, str]) -> dict[str, str]:
    """Return the benchmark's settings from positional arguments and flags."""
    settings = dict(zip(("type", "task"), words, strict=False))
    if len(words) > 2:
        raise UsageError(
            f"unexpected word {words[2]!r} (proctor list tasks BENCHMARK GROUP)",
            code="argument.count",
        )
    for name, value in flags.items():
        section, _, inside = name.partition(".")
        if section != "env" or not inside:
            raise UsageError(
                f"unknown flag --{name} (proctor list tasks takes --env.*)", code="flag.unknown"
            )
        if settings.setdefault(inside, value) != value:
            raise UsageError(
                f"--{name}={value} contradicts the word {settings[inside]!r}", code="flag.conflict"
            )
    return settings


def _list_tasks(settings: dict[str, str]) -> None:
    if "type" in settings:
        _show(_task_table(_tasks(settings)))
        return
    if settings:
        raise UsageError(
            f"--env.{next(iter(settings))}: name the benchmark too, --env.type=NAME",
            code="flag.missing",
        )
    for place, name in enumerate(plugins.known_plugins("benchmarks")):
        print(f"{'' if place == 0 else chr(10)}{name}: {plugins.find_benchmark(name).summary}")
        try:
            _show(_task_table(_tasks({"type": name})))
        except UsageError as error:  # it is not installed, or needs an id
            print(strip_control_codes(str(error)))


def _tasks(settings: Mapping[str, str]) -> list[_Listed]:
    """Return the requested tasks, or all tasks of the benchmark."""
    plugin = plugins.find_benchmark(settings["type"])
    groups = plugin.groups if "task" not in settings else ()
    listed: dict[tuple[str, str], _Listed] = {}
    for group in groups or [None]:
        chosen = settings if group is None else {**settings, "task": group}
        for task in _made(chosen).tasks():
            one = listed.setdefault((task.name, task.instruction), _Listed(task))
            one.groups[task.suite] = task.task_id
    return list(listed.values())


def _made(settings: Mapping[str, str]) -> Benchmark:
    from proctor.config.builder import benchmark_config_from

    return plugins.benchmark_maker(benchmark_config_from(settings))()


def _task_table(listed: list[_Listed]) -> tuple[Table, int]:
    table = _table("task", "instruction", "group and id", "steps", "fps")
    for one in listed:
        task, places = one.task, (f"{group} {n}" for group, n in one.groups.items())
        cells = (task.name, task.instruction, ", ".join(places), task.max_steps, task.fps)
        table.add_row(*(_text(cell) for cell in cells))
    return table, 3


def _benchmark_table() -> tuple[Table, int]:
    table = _table("benchmark", "what it is", "groups", "tasks")
    for name in plugins.known_plugins("benchmarks"):
        plugin = plugins.find_benchmark(name)
        cells = (name, plugin.summary, ", ".join(plugin.groups), _how_many(name, plugin))
        table.add_row(*(_text(cell) for cell in cells))
    return table, 3


def _how_many(name: str, plugin: BenchmarkPlugin) -> str:
    """Return the number of tasks, or how to install a missing benchmark."""
    from proctor.system.platform.platform_info import installed_version

    try:
        needed = _made({"type": name}).distributions
        missing = [package for package in needed if installed_version(package) is None]
        return str(MissingExtra(missing[0], name)) if missing else str(len(_tasks({"type": name})))
    except MissingExtra as error:
        return str(error)
    except UsageError:
        return "by id"


def _policy_table() -> tuple[Table, int]:
    from proctor.policies.lerobot.config.config import CheckpointPlugin

    table = _table("policy", "what it is", "trained by")
    for name in plugins.known_plugins("policies"):
        plugin = plugins.find_policy(name)
        trained = "proctor train" if isinstance(plugin, CheckpointPlugin) else ""
        table.add_row(_text(name), _text(plugin.summary), _text(trained))
    return table, 2


def _device_table(kind: str) -> tuple[Table, int]:
    from proctor.robots.third_party import import_third_party

    table = _table(_DEVICES[kind], "what it is")
    failed = import_third_party(kind)
    for name in plugins.known_plugins(kind):
        table.add_row(_text(name), _text(plugins.FINDERS[kind](name).summary))
    for module, reason in failed.items():
        table.add_row(_text(module), _text(reason))
    return table, 1


def _table(*names: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in names:
        number = name in ("steps", "fps")
        table.add_column(name, overflow="fold", justify="right" if number else "left")
    return table


def _text(cell: object) -> Any:
    from rich.text import Text

    return Text(strip_control_codes(str(cell)))  # not parsed as markup


def _show(shown: tuple[Table, int]) -> None:
    from proctor.report.html.tables import fit_table, table_console

    table, names = shown
    console = table_console()
    console.print(fit_table(table, console.width, names))
