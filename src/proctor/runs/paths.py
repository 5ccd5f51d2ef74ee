"""Paths in the settings of a run: recorded absolute, and found again from any folder.

A setting is recorded as it was typed. Beside it stands the absolute path that it meant, with links
resolved (``checkpoints/last`` is the folder of a step), and the path from the run folder, by which
a run that was moved together with its neighbours finds them.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proctor.errors import UsageError
from proctor.fingerprint import PATH_KEYS, has_mark

_OWN = ("output_dir",)
"""The run folder itself: it is not recorded inside itself."""


@dataclass(frozen=True)
class RecordedPath:
    """A path in the settings of a run."""

    typed: str
    absolute: str
    """With links resolved."""
    from_run: str
    """Relative to the run folder."""
    existed: bool = False
    """Whether it is an input of the run that existed when the run began."""
    link: str | None = None
    """The absolute path before its links were resolved; None if it had none."""

    def find(self, folder: Path) -> Path:
        """Return where the path is now, for the run in ``folder``.

        If the run folder was moved or copied, its neighbours come first.
        """
        absolute, beside = Path(self.absolute), self._beside(folder)
        return absolute if absolute.exists() and not beside.exists() else beside

    def is_moved(self, folder: Path) -> bool:
        """Return whether the run folder was moved or copied since."""
        return self._beside(folder) != Path(self.absolute)

    def _beside(self, folder: Path) -> Path:
        return Path(os.path.normpath(folder.resolve() / self.from_run))


Paths = Mapping[str, RecordedPath]
"""The paths of a run by the dotted names of their settings."""


def record_paths(config: Any, given: Mapping[str, Any], folder: Path) -> dict[str, RecordedPath]:
    """Return the paths in the settings of the run in ``folder``.

    Text that may also be a Hub id is a path if there is such a file or folder here.

    Args:
        config: the run's config, with its checkpoint pinned.
        given: its settings as typed.
        folder: the run folder.
    """
    found = {}
    for name, value, is_input in _path_fields(config, ""):
        path = Path(value).expanduser()
        existed = is_input and _exists(path)
        if not existed and not isinstance(value, Path):
            continue  # a Hub id
        typed = get_dotted(given, name)
        typed = str(value if typed is None else typed)
        whole, link = path.resolve(), Path(os.path.abspath(Path(typed).expanduser()))  # noqa: PTH100
        found[name] = RecordedPath(
            typed=typed,
            absolute=str(whole),
            from_run=os.path.relpath(whole, folder.resolve()),
            existed=existed,
            link=None if link == whole else str(link),
        )
    return found


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _path_fields(config: Any, prefix: str) -> Iterator[tuple[str, Path | str, bool]]:
    """Yield name and value of the fields that may hold a path, and whether they name an input."""
    for field in dataclasses.fields(config):
        name, value = f"{prefix}{field.name}", getattr(config, field.name)
        is_input = has_mark(type(config), field.name, "local_path")
        if name in _OWN:
            continue
        if dataclasses.is_dataclass(value):
            yield from _path_fields(value, f"{name}.")
        elif isinstance(value, Path) or (is_input and isinstance(value, str) and value):
            yield name, value, is_input
        elif isinstance(value, Mapping):
            for key in field.metadata.get(PATH_KEYS, ()):
                if isinstance(value.get(key), str) and value[key]:
                    yield f"{prefix}{key}", value[key], True


def settings_with_paths(
    given: Mapping[str, Any], paths: Paths, folder: Path, but: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the settings of an earlier run with its paths as they are now.

    The paths of a run from before paths were recorded are searched from here, from its folder and
    from the folders above it.

    Args:
        given: the settings as typed.
        paths: the recorded paths.
        folder: the run folder.
        but: settings that replace those of the run; these are left alone.
    """
    settings = dict(given)
    for name, recorded in paths.items():
        if get_dotted(given, name) is None or get_dotted(but, name) is not None:
            continue
        path = recorded.find(folder)
        if recorded.existed and not _exists(path):
            also = f", nor {path}" if recorded.is_moved(folder) else ""
            raise UsageError(
                f"--{name}: {recorded.absolute} does not exist any more{also}; give its new place "
                f"with --{name}=DIR",
                code="path.not-found",
            )
        settings = with_dotted(settings, name, str(path))
    for name in _SEARCHED:
        typed = get_dotted(settings, name)
        if name not in paths and isinstance(typed, str) and get_dotted(but, name) is None:
            settings = with_dotted(settings, name, _searched(typed, folder))
    return settings


_SEARCHED = ("policy.path", "dataset.root")


def _searched(typed: str, folder: Path) -> str:
    """Return the path of a setting of an older run; unchanged if it is found nowhere."""
    path = Path(typed).expanduser()
    if path.is_absolute() or _exists(path):
        return typed
    whole = folder.resolve()
    places = (above / path for above in (whole, *whole.parents))
    return next((str(place) for place in places if _exists(place)), typed)


def keep_typed(
    given: Mapping[str, Any], paths: Paths, earlier: tuple[Mapping[str, Any], Paths], folder: Path
) -> tuple[dict[str, Any], dict[str, RecordedPath]]:
    """Return settings and paths of a resumed run, as typed in the session that typed them.

    Args:
        given: the settings of this session, in which earlier paths are absolute.
        paths: its paths.
        earlier: the settings and paths of the session before.
        folder: the run folder.
    """
    settings, kept = dict(given), dict(paths)
    before, known = earlier
    for name, recorded in known.items():
        typed = get_dotted(before, name)
        if name in kept and typed is not None and kept[name].typed == str(recorded.find(folder)):
            settings = with_dotted(settings, name, typed)
            kept[name] = dataclasses.replace(kept[name], typed=recorded.typed, link=recorded.link)
    return settings, kept


def pinned_settings(given: Mapping[str, Any], paths: Paths) -> dict[str, Any]:
    """Return the settings with links, such as ``checkpoints/last``, replaced by what they meant."""
    settings = dict(given)
    for name, recorded in paths.items():
        if recorded.link is not None and get_dotted(given, name) is not None:
            settings = with_dotted(settings, name, recorded.absolute)
    return settings


def typed_again(paths: Paths, settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings that repeat a run's path as typed, though that means another path now.

    A command that is repeated with ``--resume`` means the run's own checkpoint, such as
    ``checkpoints/last`` as it was, or a folder that is not found from here.
    """
    again = {}
    for name, recorded in paths.items():
        typed = get_dotted(settings, name)
        if typed == recorded.typed and (recorded.link or not _exists(Path(typed).expanduser())):
            again[name] = typed
    return again


def changed_links(paths: Paths, but: Mapping[str, Any]) -> list[str]:
    """Return a note for each link that has another target than when the run began.

    ``but`` are settings that replace those of the run.
    """
    notes = []
    for name, recorded in paths.items():
        now = None if recorded.link is None else Path(recorded.link).resolve()
        if now in (None, Path(recorded.absolute)) or get_dotted(but, name) is not None:
            continue
        notes.append(
            f"--{name}={recorded.typed} was {recorded.absolute} when this run began, and that is "
            f"used; by now it is {now}"
        )
    return notes


def get_dotted(settings: Mapping[str, Any], name: str) -> Any:
    """Return a setting by its dotted name, from flat or nested settings; None if it is not set."""
    section, dot, rest = name.partition(".")
    nested = settings.get(section) if dot else None
    inside = nested.get(rest) if isinstance(nested, Mapping) else None
    return settings.get(name, inside)


def with_dotted(settings: Mapping[str, Any], name: str, value: Any) -> dict[str, Any]:
    """Return settings with one replaced, where it stands: flat or nested."""
    section, dot, rest = name.partition(".")
    nested = settings.get(section) if dot else None
    if name not in settings and isinstance(nested, Mapping):
        return {**settings, section: {**nested, rest: value}}
    return {**settings, name: value}
