"""``proctor data view``: a dataset in the browser, as one HTML file, or for Rerun's viewer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from proctor.commands.data.arguments import (
    EPISODES,
    DatasetCommand,
    find_dataset,
    parse_episodes,
)
from proctor.commands.evaluation.serve_pages import HOST, LOCAL_HOST, PORT, serve_until_interrupted
from proctor.errors import UsageError, exit_code_of
from proctor.settings import setting

if TYPE_CHECKING:
    from proctor.report.dataset.summary import DatasetSummary

_FIRST = 3


@dataclass(kw_only=True)
class DataViewCommand(DatasetCommand):
    """Show a dataset in the browser, as one HTML file, or in Rerun.

    Without --html and --rerun, serves a page until Ctrl-C: episodes, their videos in step with
    plots of states, actions and all other values, and statistics. On an address of this machine
    only, the printed URL lets you mark episodes, and delete, relabel or split them; every edit
    keeps a backup.
    """

    help_groups: ClassVar[Mapping[str, str]] = {
        "File": "html rerun episodes pictures max_mb",
        "Server": "port host",
    }

    html: Path | None = setting(
        None,
        "write the page as one HTML file that works offline (default: serve the page)",
        placeholder="FILE",
    )
    rerun: Path | None = setting(
        None,
        "write the episodes as a Rerun recording (view: rerun FILE.rrd); needs "
        "proctor[rerun] (default: no recording)",
        placeholder="FILE.rrd",
    )
    episodes: str | None = setting(
        None,
        "with --html or --rerun: indices of the episodes in the file (default: the first "
        f"{_FIRST})",
        placeholder=EPISODES,
    )
    pictures: bool = setting(
        False,
        "with --html: embed images instead of videos, for browsers that cannot play the codec",
    )
    max_mb: int | None = setting(
        None,
        "with --html: maximum size of videos and images in MB; a video that is too large "
        "becomes images (default: 30)",
        least=1,
        most=2000,
    )
    port: int | None = setting(None, f"{PORT} (default: 8643)", least=0, most=65535)
    host: str | None = setting(None, f"{HOST} (default: {LOCAL_HOST})")

    def validate(self) -> None:
        """Refuse flags that would have no effect, and numbers out of range."""
        if self.html is not None and self.rerun is not None:
            raise UsageError(
                "--html and --rerun: give one of them, a call writes one file",
                code="flag.conflict",
            )
        to_file = self.html is not None or self.rerun is not None
        for name, is_set, allowed, where in (
            ("pictures", self.pictures, self.html is not None, "--html only"),
            ("max_mb", self.max_mb is not None, self.html is not None, "--html only"),
            ("port", self.port is not None, not to_file, "the served page only"),
            ("host", self.host is not None, not to_file, "the served page only"),
            ("episodes", self.episodes is not None, to_file, "--html and --rerun only"),
        ):
            if is_set and not allowed:
                raise UsageError(f"--{name} is for {where}", code="flag.conflict")

    def run(self) -> int:
        """Serve the page or write the file, and return the exit code."""
        from proctor.report.dataset.summary import read_summary

        root = find_dataset(self.dataset)
        if self.html is not None:
            return self._write_html(read_summary(root), self.html)
        if self.rerun is not None:
            return self._write_rerun(read_summary(root), self.rerun)
        port = 8643 if self.port is None else self.port
        return serve_dataset(root, self.host or LOCAL_HOST, port)

    def _episodes_of(self, facts: DatasetSummary) -> list[int]:
        """Return the episodes that go into a file."""
        total = len(facts.episodes)
        if total == 0:
            raise UsageError(f"{facts.root} has no episodes to show", code="dataset.empty")
        if self.episodes is None:
            return list(range(min(_FIRST, total)))
        chosen = sorted(set(parse_episodes(self.episodes)))
        if chosen[-1] >= total:
            raise UsageError(
                f"--episodes: {facts.root} has no episode {chosen[-1]} (choose 0-{total - 1})",
                code="dataset.unknown-episode",
            )
        return chosen

    def _write_html(self, facts: DatasetSummary, output: Path) -> int:
        from proctor.report.dataset.page import PageLimits, write_dataset_page
        from proctor.report.dataset.tables import size_text

        megabytes = 30 if self.max_mb is None else self.max_mb
        chosen = self._episodes_of(facts)
        limits = PageLimits(megabytes * 1_000_000, self.pictures)
        write_dataset_page(facts, output, chosen, limits)
        size = size_text(output.stat().st_size)
        print(f"page: {output} ({len(chosen)} of {len(facts.episodes)} episodes, {size})")
        return 0

    def _write_rerun(self, facts: DatasetSummary, output: Path) -> int:
        from proctor.report.dataset.rerun import write_rerun

        chosen = self._episodes_of(facts)
        write_rerun(facts, output, chosen)
        print(f"rerun: {output} ({len(chosen)} of {len(facts.episodes)} episodes)")
        return 0


def serve_dataset(root: Path, host: str, port: int) -> int:
    """Serve the page of a dataset until Ctrl-C and a running edit's end; return the exit code."""
    from proctor.report.dataset.site import DatasetSite
    from proctor.report.server.serve import PageServer
    from proctor.system.loopback import LOOPBACK

    site = DatasetSite(root, editable=host in LOOPBACK)
    code = serve_until_interrupted(PageServer(site, host, port))
    if site.editor.is_running:
        print(
            f"waiting for the running edit ({site.editor.status.title}); Ctrl-C again abandons it "
            "and leaves the dataset as it is",
            flush=True,
        )
        try:
            site.editor.wait()
        except KeyboardInterrupt as stop:
            return exit_code_of(stop)
        ended = site.editor.status
        print(f"backup: {ended.backup}" if ended.backup else ended.reason or "the edit is done")
    return code
