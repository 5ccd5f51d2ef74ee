"""The one merge of settings for ``eval``, ``record``, ``train`` and ``serve``.

Order of precedence, highest first:

1. flags of the command line
2. the config file (``--config_path``)
3. the settings of the run that ``--resume`` continues
4. the settings of the run that ``--against`` compares with: its benchmark, seed and episodes
5. the defaults of the config classes

Settings of files and of other runs never permit code: ``config/trust`` removes the permission, and
refuses MODULE:NAME unless a flag names it too. ``proctor train --resume`` reads ``--config_path``
as LeRobot does: it names the checkpoint to continue from, and is no source of settings then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from proctor.config.flags import path_of, read_config_file
from proctor.config.trust import without_code_trust

Settings = dict[str, Any]
"""Settings by dotted name, or nested as in a file."""


def unchanged(settings: Settings) -> Settings:
    """Return ``settings``: the default where nothing is to be translated."""
    return settings


@dataclass(frozen=True)
class EarlierRun:
    """A run whose settings are used again."""

    settings: Settings
    """The settings it was started with."""
    origin: str
    """The run's folder, for messages."""
    adapt: Callable[[Settings], Settings] = unchanged
    """Applied to the settings after the permission to run code is removed."""
    found: Settings = field(default_factory=dict)
    """What was found out while searching for the run, such as its exact folder: it replaces what
    the user gave to search by."""


FindRun = Callable[[Settings], EarlierRun | None]
"""Returns the run that settings refer to; None where they refer to no run."""


def merge_settings(
    flags: Mapping[str, Any],
    *,
    resumed: FindRun | None = None,
    reference: FindRun | None = None,
    translate: Callable[[Settings], Settings] = unchanged,
    with_file: Settings | None = None,
) -> Settings:
    """Merge all sources of settings in the order that the module describes.

    Args:
        flags: The flags of the command line by dotted name.
        resumed: Finds the run that ``--resume`` continues.
        reference: Finds the run that ``--against`` compares with.
        translate: Applied to the settings of the config file: LeRobot's names to ours.
        with_file: Config file and flags, where a caller merged those already.

    Raises:
        UsageError: a file cannot be read, a run is not found, or either asks to run code.
    """
    settings = merge_config_file(flags, translate) if with_file is None else with_file
    earlier = None if resumed is None else resumed(settings)
    if earlier is not None:
        kept = earlier.adapt(without_code_trust(earlier.settings, flags, earlier.origin))
        settings = {**kept, **settings, **earlier.found}
    compared = None if reference is None else reference(settings)
    if compared is not None:
        without_code_trust(compared.settings, settings, compared.origin)
        settings = {**compared.adapt(compared.settings), **settings, **compared.found}
    return settings


def merge_config_file(
    flags: Mapping[str, Any], translate: Callable[[Settings], Settings] = unchanged
) -> Settings:
    """Merge the flags with the config file that they name: the first step of ``merge_settings``."""
    settings = dict(flags)
    if "config_path" not in settings:
        return settings
    file = path_of(str(settings.pop("config_path")), "--config_path")
    return {**translate(without_code_trust(read_config_file(file), flags, str(file))), **settings}


def is_resumed(settings: Mapping[str, Any]) -> bool:
    """Return whether ``--resume`` is given."""
    return str(settings.get("resume", "false")).lower() == "true"
