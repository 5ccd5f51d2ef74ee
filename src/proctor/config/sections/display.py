"""Flags of commands that show a robot: the live page, and Rerun with LeRobot's flags."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from proctor.config.base import Config
from proctor.errors import UsageError
from proctor.fingerprint import PRESENTATION
from proctor.lerobot_flags import unused_note
from proctor.settings import setting


@dataclass(kw_only=True)
class LiveFlags(Config):
    """Flags of the live page of a robot."""

    help_groups: ClassVar[Mapping[str, str]] = {"Live page": "live live_host live_port"}

    live: bool = setting(
        False,
        "serve a page with cameras, joints and the loop's rate, at --live_host and --live_port",
        PRESENTATION,
    )
    live_host: str = setting(
        "127.0.0.1",
        "IP address that --live serves on; other machines need the printed token",
        PRESENTATION,
    )
    live_port: int = setting(
        8643, "TCP port that --live serves on; 0: any free port", PRESENTATION, least=0, most=65535
    )

    def unused_notes(self) -> list[str]:
        """Return notes on flags without effect."""
        changed = [] if self.live else _changed(self, ("live_host", "live_port"))
        return [unused_note(changed, "--live is not set")] if changed else []


@dataclass(kw_only=True)
class DisplayFlags(LiveFlags):
    """Flags of the live page, and LeRobot's flags of a viewer."""

    help_groups: ClassVar[Mapping[str, str]] = {
        "Viewer": "display_data display_mode display_ip display_port display_compressed_images"
    }

    display_data: bool = setting(
        False, "show cameras, joints and actions in Rerun (extra: rerun)", PRESENTATION
    )
    display_mode: str = setting("rerun", "viewer of --display_data: rerun", PRESENTATION)
    display_ip: str | None = setting(
        None,
        "address of a running Rerun viewer (default: a viewer is started on this machine)",
        PRESENTATION,
    )
    display_port: int | None = setting(
        None, "TCP port of the viewer (default: 9876)", PRESENTATION, least=1, most=65535
    )
    display_compressed_images: bool = setting(
        False, "send images as JPEG; with --display_ip they always are", PRESENTATION
    )

    def unused_notes(self) -> list[str]:
        """Return notes on flags without effect."""
        names = ("display_ip", "display_port", "display_compressed_images")
        changed = [] if self.display_data else _changed(self, names)
        notes = [unused_note(changed, "--display_data is not set")] if changed else []
        return super().unused_notes() + notes

    def validate(self) -> None:
        """Refuse another viewer."""
        super().validate()
        if self.display_mode != "rerun":
            raise UsageError(
                f"--display_mode={self.display_mode}: the only viewer is rerun; --live serves a "
                "page without one",
                code="flag.unsupported",
            )


def _changed(flags: LiveFlags, names: tuple[str, ...]) -> list[str]:
    """Return the flags whose value is not the default."""
    return [f"--{name}" for name in names if getattr(flags, name) != getattr(type(flags), name)]
