"""Environments from the Hub or from a file: ``--env.type=hub --env.path=...``."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proctor.benchmarks.base import BenchmarkPlugin
from proctor.benchmarks.gym.benchmark import GymAdapter, GymAdapterConfig
from proctor.benchmarks.gym.probe import EnvFacts
from proctor.errors import MissingExtra, UsageError
from proctor.fingerprint import LOCAL_PATH, PRESENTATION
from proctor.settings import setting
from proctor.system.hub.repositories import HUB_ID, download
from proctor.system.platform.source_files import source_hashes

_DEFAULT_FILE = "env.py"
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass
class HubConfig(GymAdapterConfig):
    """Flags of environments from the Hub."""

    type: str = setting("hub", "benchmark: a built-in name or package.module:NAME")
    task: str = setting("", "suites that make_env returns, comma-separated (default: all)")
    path: str = setting(
        "",
        "code that defines make_env: owner/repo, owner/repo:file.py, or a local file (required)",
        PRESENTATION,
        LOCAL_PATH,
    )
    revision: str | None = setting(
        None, "commit of the Hub repository, 40 hex digits (required for the Hub)"
    )
    trust_remote_code: bool = setting(
        False,
        "run the code of this Hub repository with your user's rights (short: --trust_remote_code)",
        PRESENTATION,
        alias="trust_remote_code",
        alias_help="run the code of an environment from the Hub (--env.type=hub) with your "
        "user's rights",
    )


@dataclass(frozen=True)
class HubCode:
    """File of the code, and the facts of its environments, found by the parent process."""

    file: Path
    facts: EnvFacts


class Hub(GymAdapter):
    """Benchmark of the environments that a third-party ``make_env`` makes."""

    def __init__(self, config: HubConfig, located: HubCode | None = None) -> None:
        self._file = _locate(config) if located is None else located.file
        from proctor.benchmarks.gym.hub_env import HubOpener

        opener = HubOpener(self._file, _name(config.path), config.kwargs)
        super().__init__("hub", config, opener, None if located is None else located.facts)
        self.located = HubCode(self._file, self.facts)

    def protocol(self) -> dict[str, Any]:
        """Return the rules that define an episode, and the hashes of their code."""
        return {**super().protocol(), "files": source_hashes(self._file)}


def _locate(config: HubConfig) -> Path:
    """Return the file with the code, downloaded if it is on the Hub."""
    if not config.path:
        raise UsageError(
            "--env.path is missing: owner/repo on the Hub, or a Python file here",
            code="flag.missing",
        )
    if not config.trust_remote_code:
        raise UsageError(
            f"--env.path={config.path} is code that would run here with all your rights: your "
            "files, your network, your credentials; read it, then add --trust_remote_code",
            code="env.untrusted-code",
        )
    if importlib.util.find_spec("gymnasium") is None:
        raise MissingExtra("gymnasium", "hub")
    here = Path(config.path).expanduser()
    if here.exists():
        if config.revision is not None:
            raise UsageError(
                f"{here} is a local file; --env.revision is for repositories on the Hub",
                code="flag.conflict",
            )
        return _file_in(here, _DEFAULT_FILE)
    repo, _, file = config.path.partition(":")
    if repo.startswith(".") or repo.endswith(".py") or not HUB_ID.fullmatch(repo):
        raise UsageError(
            f"{here} does not exist (and is no Hub id, which reads owner/name)",
            code="env.not-found",
        )
    if config.revision is None or not _COMMIT.fullmatch(config.revision):
        raise UsageError(
            f"--env.path={config.path} needs --env.revision, the commit that you have read, in 40 "
            "hex digits: a branch may change at any time",
            code="env.not-pinned",
        )
    return _file_in(download(repo, config.revision), file or _DEFAULT_FILE)


def _file_in(path: Path, file: str) -> Path:
    found = path / file if path.is_dir() else path
    if not found.is_file():
        raise UsageError(
            f"{path} has no {file}; name the file with make_env as {path}:FILE",
            code="env.not-found",
        )
    return found.absolute()


def _name(path: str) -> str:
    """Return the suite's name for a make_env without names."""
    return Path(path.partition(":")[0]).name.removesuffix(".py")


def probe_once(config: HubConfig) -> HubCode:
    """Locate the code and probe its environments, for workers."""
    return Hub(config).located


PLUGIN = BenchmarkPlugin(
    config=HubConfig,
    make=Hub,
    summary="environments of a Hub repository or file (--env.path)",
    probe=probe_once,
)
