"""Environments from the Hub or a file: ``--env.type=hub --env.path=... --trust_remote_code``."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proctor.benchmarks.base import BenchmarkPlugin
from proctor.benchmarks.gym.benchmark import GymAdapter, GymAdapterConfig
from proctor.benchmarks.gym.probe import EnvFacts
from proctor.errors import MissingExtra, UsageError
from proctor.fingerprint import PRESENTATION
from proctor.system.hub import HUB_ID, download
from proctor.system.source_files import source_hashes

_DEFAULT_FILE = "env.py"
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass
class HubConfig(GymAdapterConfig):
    """Flags of environments from the Hub."""

    type: str = field(default="hub", metadata={"help": "which benchmark"})
    task: str = field(default="", metadata={"help": "suites of its make_env, comma-separated"})
    path: str = field(
        default="",
        metadata={"help": "owner/repo, owner/repo:file.py, or a file here, with make_env in it"}
        | PRESENTATION,
    )
    revision: str | None = field(
        default=None, metadata={"help": "the commit of a Hub repository, 40 hex digits"}
    )
    trust_remote_code: bool = field(
        default=False,
        metadata={
            "help": "run its code, with all your rights (--trust_remote_code)",
            "alias": "trust_remote_code",
            "alias_help": "run the code of an environment from the Hub, with --env.type=hub",
        }
        | PRESENTATION,
    )


@dataclass(frozen=True)
class HubCode:
    """Where the code is and what its environments are, once the parent has found out."""

    file: Path
    facts: EnvFacts


class Hub(GymAdapter):
    """What a ``make_env`` of somebody else makes."""

    def __init__(self, config: HubConfig, located: HubCode | None = None) -> None:
        self._file = _locate(config) if located is None else located.file
        from proctor.benchmarks.gym.hub_env import HubOpener

        opener = HubOpener(self._file, _name(config.path), config.kwargs)
        super().__init__("hub", config, opener, None if located is None else located.facts)
        self.located = HubCode(self._file, self.facts)

    def protocol(self) -> dict[str, Any]:
        """Return the rules that define an episode, and which code they are in."""
        return {**super().protocol(), "files": source_hashes(self._file)}


def _locate(config: HubConfig) -> Path:
    """Return the file with the code, downloaded where it is on the Hub.

    Raises:
        UsageError: it may not run, is not pinned or is not there.
    """
    if not config.path:
        raise UsageError("--env.path is missing: owner/repo on the Hub, or a Python file here")
    if not config.trust_remote_code:
        raise UsageError(
            f"--env.path={config.path} is code that would run here with all your rights: your "
            "files, your network, your credentials; read it, then add --trust_remote_code"
        )
    if importlib.util.find_spec("gymnasium") is None:
        raise MissingExtra("gymnasium", "hub")
    here = Path(config.path).expanduser()
    if here.exists():
        if config.revision is not None:
            raise UsageError(f"{here} is here; --env.revision is for repositories on the Hub")
        return _file_in(here, _DEFAULT_FILE)
    repo, _, file = config.path.partition(":")
    if repo.startswith(".") or repo.endswith(".py") or not HUB_ID.fullmatch(repo):
        raise UsageError(f"{here} does not exist (and is no Hub id, which reads owner/name)")
    if config.revision is None or not _COMMIT.fullmatch(config.revision):
        raise UsageError(
            f"--env.path={config.path} needs --env.revision, the commit that you have read, in 40 "
            "hex digits: what a branch names may change under you"
        )
    return _file_in(download(repo, config.revision), file or _DEFAULT_FILE)


def _file_in(path: Path, file: str) -> Path:
    found = path / file if path.is_dir() else path
    if not found.is_file():
        raise UsageError(f"{path} has no {file}; name the file with make_env as {path}:FILE")
    return found.absolute()


def _name(path: str) -> str:
    """Return what the environment is called where its make_env gives no names."""
    return Path(path.partition(":")[0]).name.removesuffix(".py")


def probe_once(config: HubConfig) -> HubCode:
    """Return what workers need to know of the code."""
    return Hub(config).located


PLUGIN = BenchmarkPlugin(
    config=HubConfig,
    make=Hub,
    summary="environments of a Hub repository or file (--env.path)",
    probe=probe_once,
)
