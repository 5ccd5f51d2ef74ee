"""``proctor data view``: a dataset in the browser, as one HTML file, or for Rerun's viewer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from proctor.commands.data_arguments import ParsedArgs, parse_args, parse_episodes
from proctor.commands.serve_pages import port_of, serve_until_interrupted
from proctor.errors import UsageError

if TYPE_CHECKING:
    from proctor.report.dataset_facts import DatasetFacts

_USAGE = """\
proctor data view DATASET [--port=8643] [--host=127.0.0.1]
proctor data view DATASET --html=FILE [--episodes=0,3,5-9] [--pictures] [--max_mb=30]
proctor data view DATASET --rerun=FILE.rrd [--episodes=0,3,5-9]

Serves a page of a dataset until Ctrl-C: its episodes, their videos in step with plots of state,
action and all other numbers, statistics. On another host than this machine's own address, the
printed address has a token.

  --html=FILE
      write the page as one file that any browser shows without a network
  --rerun=FILE.rrd
      write the episodes for Rerun's viewer (rerun FILE.rrd); needs proctor[rerun]
  --episodes=0,3,5-9
      which episodes go into the file (default: the first three)
  --pictures
      put single pictures into the page instead of videos, for browsers that do not play them
  --max_mb=30
      megabytes of videos and pictures in the page; a video that is too large becomes pictures
"""
_FLAGS = ("port", "host", "html", "rerun", "episodes", "max_mb")
_FIRST = 3
_MOST_MB = 2000


def run(words: list[str]) -> int:
    """Run the verb and return its exit code."""
    from proctor.config.flags import path_of

    given = parse_args("view", _USAGE, words, _FLAGS, switches=("pictures",))
    if given is None:
        return 0
    flags = given.flags
    _check_together(flags)
    from proctor.report.dataset_facts import read_facts

    facts = read_facts(given.dataset())
    if "html" in flags:
        return _write_html(facts, path_of(flags["html"]), given)
    if "rerun" in flags:
        return _write_rerun(facts, path_of(flags["rerun"]), flags)
    return _serve(facts, flags)


def _check_together(flags: Mapping[str, str]) -> None:
    """Refuse flags that would do nothing."""
    if "html" in flags and "rerun" in flags:
        raise UsageError("view writes one file at a time: --html or --rerun")
    needs = {"pictures": "html", "max_mb": "html", "host": "", "port": ""}
    for name, other in needs.items():
        if name in flags and (other not in flags if other else {"html", "rerun"} & flags.keys()):
            which = f"--{other} only" if other else "the served page only"
            raise UsageError(f"--{name} is for {which}")
    if "episodes" in flags and not {"html", "rerun"} & flags.keys():
        raise UsageError("--episodes is for --html and --rerun; the served page has all of them")


def _chosen(facts: DatasetFacts, flags: Mapping[str, str]) -> list[int]:
    """Return the episodes that go into a file.

    Raises:
        UsageError: one of them is none of the dataset's, or there are none.
    """
    total = len(facts.episodes)
    if total == 0:
        raise UsageError(f"{facts.root} has no episodes to show")
    if "episodes" not in flags:
        return list(range(min(_FIRST, total)))
    chosen = sorted(set(parse_episodes(flags["episodes"])))
    if chosen[-1] >= total:
        raise UsageError(f"{facts.root} has no episode {chosen[-1]} (choose 0-{total - 1})")
    return chosen


def _write_html(facts: DatasetFacts, output: Path, given: ParsedArgs) -> int:
    from proctor.report.dataset_page import PageLimits, write_dataset_page
    from proctor.report.dataset_tables import size_text

    text = given.flags.get("max_mb", "30")
    if not text.isdecimal() or len(text) > 4 or not 1 <= int(text) <= _MOST_MB:
        raise UsageError(f"--max_mb must be a number from 1 to {_MOST_MB}, got {text!r}")
    bounds = PageLimits(int(text) * 1_000_000, given.switch("pictures"))
    chosen = _chosen(facts, given.flags)
    write_dataset_page(facts, output, chosen, bounds)
    size = size_text(output.stat().st_size)
    print(f"page: {output} ({len(chosen)} of {len(facts.episodes)} episodes, {size})")
    return 0


def _write_rerun(facts: DatasetFacts, output: Path, flags: Mapping[str, str]) -> int:
    from proctor.report.dataset_rerun import write_rerun

    chosen = _chosen(facts, flags)
    write_rerun(facts, output, chosen)
    print(f"rerun: {output} ({len(chosen)} of {len(facts.episodes)} episodes)")
    return 0


def _serve(facts: DatasetFacts, flags: Mapping[str, str]) -> int:
    from proctor.report.dataset_site import DatasetSite
    from proctor.report.serve import PageServer

    port = port_of(flags.get("port", "8643"))
    site = DatasetSite(facts)
    return serve_until_interrupted(PageServer(site, flags.get("host", "127.0.0.1"), port))
