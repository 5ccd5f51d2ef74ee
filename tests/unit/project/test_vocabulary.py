"""Retired names stay retired: code, tests and documentation use the field's words."""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

from tests.documents import all_pages, site_pages

ROOT = Path(__file__).parents[3]
RETIRED = frozenset(
    [
        "Arena",
        "Openings",
        "Fleet",
        "Lot",
        "Way",
        "News",
        "Newcomer",
        "Backlog",
        "Teacher",
        "Stage",
        "Here",
        "Elsewhere",
        "Desk",
        "Guest",
        "Talk",
        "Door",
        "GuestLeft",
        "Ask",
        "About",
        "Take",
        "TakeWriter",
        "Workshop",
        "Places",
        "Entry",
        "Shelf",
        "Spread",
        "Unmoved",
        "Recipe",
        "Hearing",
        "Seeing",
        "Seat",
        "Place",
        "Speech",
        "among_all",
        "speech_of",
        "rope_at",
        "names_for_ours",
        "names_for_others",
        "is_lines",
        "Link",
        "Material",
        "Together",
        "Examiner",
        "Meter",
        "Reading",
        "Draws",
        "Learning",
        "Watch",
        "Book",
        "Stopper",
        "Recorder",
        "ActWords",
        "ActWordsConfig",
        "WireError",
        "PeerLost",
        "hear_episode",
        "needs_instruction",
        "is_told",
        "recalls",
        "tell_tale",
        "head_start",
        "raw_names",
        "plain_env",
        "any_size",
        "read_plain",
        "mend_swap",
        "one_line",
        "act_words",
        "what_happened",
        "RunContent",
        "LoadedRun",
        "RunResults",
        "write_whole",
        "Line",
        "Prepared",
        "Players",
        "Definition",
        "SessionRules",
        "EngineSetup",
        "WorkerSetup",
        "DrawSlots",
        "draw_slots",
        "Parts",
        "Seen",
        "Losing",
        "LearntFrom",
        "OneGraph",
        "ALONE_HERE",
        "one_graph",
        "reading_line",
        "cannot_serve",
        "decode_picture",
        "ForeignBenchmark",
        "ForeignEnv",
        "ForeignSim",
        "HANDED_OVER",
        "TakeVerdict",
        "EpisodeTake",
        "Surroundings",
        "Admitted",
        "wished",
    ]
)
"""Identifiers that VOCABULARY renamed; none is a word that the field uses for something else."""
RETIRED_PACKAGES = re.compile(
    r"\bproctor[./](?:wire|recorders|machine|definition|foreign|values)\b"
)
OLD_NAMES_ON_PURPOSE = {
    "tests/unit/project/test_vocabulary.py",
    "tests/golden/make_written_by_a825226.py",
    "tests/golden/test_written_by_a825226.py",
    "src/proctor/policies/lerobot/config/families.py",
}
"""Files that must name what an older version wrote."""


def sources() -> list[Path]:
    folders = ("src", "tests", "measurements", "scripts", "examples")
    found = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return [path for path in found if str(path.relative_to(ROOT)) not in OLD_NAMES_ON_PURPOSE]


def identifiers(path: Path) -> set[str]:
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline)
    return {token.string for token in tokens if token.type == tokenize.NAME}


def test_no_retired_identifier_is_used() -> None:
    used = {
        str(path.relative_to(ROOT)): sorted(identifiers(path) & RETIRED)
        for path in sources()
        if identifiers(path) & RETIRED
    }
    assert used == {}


def test_no_retired_identifier_is_documented() -> None:
    pages = all_pages()
    named = {
        str(page.relative_to(ROOT)): sorted(found)
        for page in pages
        if page.name != "CHANGELOG.md"
        if (found := RETIRED & set(re.findall(r"`(\w+)`", page.read_text(encoding="utf-8"))))
    }
    assert named == {}


def test_retired_packages_are_not_named() -> None:
    texts = [*sources(), *site_pages(), ROOT / "pyproject.toml", ROOT / "Makefile"]
    named = {
        str(path.relative_to(ROOT)): sorted(set(found))
        for path in texts
        if (found := RETIRED_PACKAGES.findall(path.read_text(encoding="utf-8")))
    }
    assert named == {}
