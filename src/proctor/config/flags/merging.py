"""The one merge of settings for ``eval``, ``record``, ``train`` and ``serve``.

Order of precedence, highest first:

1. flags of the command line
2. the config file (``--config_path``)
3. the settings of the run that ``--resume`` continues
4. the settings of the run that ``--against`` compares with: its benchmark, seed and episodes
5. the defaults of the config classes

Settings of files and of other runs permit nothing: see ``proctor/permissions``. ``proctor train
--resume`` reads ``--config_path`` as LeRobot does: it names the checkpoint to continue from, and is
no source of settings then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from proctor.config.flags.parsing import path_of, read_config_file
from proctor.config.flags.removed_flags import without_removed_flags
from proctor.permissions import PLACES, require_permission

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
    """Applied to the settings before their permissions are checked."""
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
    places: Collection[str] = PLACES,
) -> Settings:
    """Merge all sources of settings in the order that the module describes.

    Args:
        flags: The flags of the command line by dotted name.
        resumed: Finds the run that ``--resume`` continues.
        reference: Finds the run that ``--against`` compares with.
        translate: Applied to the settings of the config file: LeRobot's names to ours.
        with_file: Config file and flags, where a caller merged those already.
        places: The flags that name a folder to write.
    """
    settings = merge_config_file(flags, translate, places) if with_file is None else with_file
    earlier = None if resumed is None else resumed(settings)
    if earlier is not None:
        kept = earlier.adapt(without_removed_flags(earlier.settings))
        require_permission(kept, {**flags, **earlier.found}, earlier.origin, places)
        settings = {**kept, **settings, **earlier.found}
    compared = None if reference is None else reference(settings)
    if compared is not None:
        kept = compared.adapt(without_removed_flags(compared.settings))
        require_permission(kept, settings, compared.origin, places)
        settings = {**kept, **settings, **compared.found}
    return settings


def merge_config_file(
    flags: Mapping[str, Any],
    translate: Callable[[Settings], Settings] = unchanged,
    places: Collection[str] = PLACES,
) -> Settings:
    """Merge the flags with the config file that they name: the first step of ``merge_settings``."""
    settings = dict(flags)
    if "config_path" not in settings:
        return settings
    file = path_of(str(settings.pop("config_path")), "--config_path")
    found = translate(without_removed_flags(read_config_file(file)))
    require_permission(found, flags, str(file), places)
    return {**found, **settings}


def is_resumed(settings: Mapping[str, Any]) -> bool:
    """Return whether ``--resume`` is given."""
    return str(settings.get("resume", "false")).lower() == "true"
