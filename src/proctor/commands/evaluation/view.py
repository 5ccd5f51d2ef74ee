"""``proctor view``: a folder of runs in the browser."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from proctor.commands.data.view import serve_dataset
from proctor.commands.evaluation.serve_pages import HOST, LOCAL_HOST, PORT, serve_until_interrupted
from proctor.config.flags.command import CommandConfig, argument, run_command
from proctor.errors import UsageError
from proctor.settings import setting


@dataclass(kw_only=True)
class ViewCommand(CommandConfig):
    """Show runs in the browser: a list, and the page of each; or a dataset.

    Serves the runs and trainings in and below FOLDER until Ctrl-C. Pages of active runs follow
    their progress. If FOLDER is a dataset, serves its page, as proctor data view does.
    """

    help_group: ClassVar[str] = "Server"

    folder: Path = field(
        metadata=argument("FOLDER", "folder that contains runs, such as outputs, or a dataset")
    )
    port: int = setting(8642, PORT, least=0, most=65535)
    host: str = setting(LOCAL_HOST, HOST)

    def validate(self) -> None:
        """Refuse a missing folder."""
        if not self.folder.is_dir():
            raise UsageError(
                f"{self.folder}: no such folder; give a folder that contains runs",
                code="run.not-found",
            )

    def run(self) -> int:
        """Serve the pages and return the exit code."""
        from proctor.datasets.format.info import INFO_FILE
        from proctor.report.server.serve import RunServer

        if (self.folder / INFO_FILE).is_file():
            return serve_dataset(self.folder, self.host, self.port)
        return serve_until_interrupted(RunServer(self.folder, self.host, self.port))


def run(words: list[str]) -> int:
    """Run the command and return its exit code."""
    return run_command(ViewCommand, "proctor view", words)
