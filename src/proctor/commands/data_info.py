"""``proctor data info``: what a dataset holds."""

from __future__ import annotations

from proctor.commands.data_arguments import parse_args

_USAGE = """\
proctor data info DATASET

Prints a dataset's version, rate, episodes, features, cameras, tasks, sizes and statistics; on a
terminal cut to its width and to the first rows of long lists, whole when piped.
"""
_MOST_ROWS = 20


def run(words: list[str]) -> int:
    """Run the verb and return its exit code."""
    given = parse_args("info", _USAGE, words, ())
    if given is None:
        return 0
    root = given.dataset()
    from proctor.report.dataset_facts import read_facts
    from proctor.report.dataset_tables import TableSize, facts_tables
    from proctor.report.tables import table_console

    facts = read_facts(root)
    console = table_console()
    room = TableSize(console.width, _MOST_ROWS if console.is_terminal else None)
    with console.capture() as shown:
        for number, table in enumerate(facts_tables(facts, room)):
            console.print(*([] if number == 0 else [""]), table, sep="\n")
    print("\n".join(line.rstrip() for line in shown.get().splitlines()))
    return 0
