"""``proctor data info``: the contents of a dataset."""

from __future__ import annotations

from dataclasses import dataclass

from proctor.commands.data.arguments import DatasetCommand, find_dataset

_MOST_ROWS = 20


@dataclass(kw_only=True)
class DataInfoCommand(DatasetCommand):
    """Print version, features, cameras, tasks, sizes and statistics.

    On a terminal, tables are cut to its width and long lists to their first rows. Piped output is
    complete.
    """

    def run(self) -> int:
        """Print the tables and return the exit code."""
        root = find_dataset(self.dataset)
        from proctor.report.dataset.summary import read_summary
        from proctor.report.dataset.tables import TableSize, summary_tables
        from proctor.report.html.tables import table_console

        facts = read_summary(root)
        console = table_console()
        room = TableSize(console.width, _MOST_ROWS if console.is_terminal else None)
        with console.capture() as shown:
            for number, table in enumerate(summary_tables(facts, room)):
                console.print(*([] if number == 0 else [""]), table, sep="\n")
        print("\n".join(line.rstrip() for line in shown.get().splitlines()))
        return 0
