"""``proctor report``: write the page of a run or a training, or its results as a table."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

from proctor.config.flags.command import CommandConfig, argument, run_command
from proctor.errors import UsageError, strip_control_codes
from proctor.settings import setting

_FILES = {"csv": "episodes.csv", "markdown": "report.md"}


@dataclass(kw_only=True)
class ReportCommand(CommandConfig):
    """Write the page of a run or a training, finished or not.

    The page is one file that any browser shows offline; videos stay in the run folder. With --csv,
    --markdown, --card or --eval-results and without --output, no page is written. Of a run with
    perturbed tasks, the robustness table is printed beside the page.
    """

    folder: Path = field(metadata=argument("RUN", "folder of the run or the training"))
    output: Path | None = setting(
        None, "file of the page (default: RUN/report.html)", placeholder="FILE"
    )
    csv: str | None = setting(
        None,
        "write one row per episode as CSV to FILE; without a value: RUN/episodes.csv; -: "
        "standard output (default: no CSV)",
        placeholder="FILE",
        optional_value=True,
    )
    markdown: str | None = setting(
        None,
        "write the results as a Markdown table to FILE; without a value: RUN/report.md; -: "
        "standard output (default: no Markdown)",
        placeholder="FILE",
        optional_value=True,
    )

    card: str | None = setting(
        None,
        "write a result card (rates, intervals, protocol, command) as FILE.md and FILE.json; "
        "without a value: RUN/card.md and RUN/card.json (default: no card)",
        placeholder="FILE",
        optional_value=True,
    )

    eval_results: str | None = setting(
        None,
        "write the success rate in the Hub's format to RUN/.eval_results/TASK.yaml, for a "
        "task of a benchmark dataset there; with --card also in card.md (default: no such "
        "file)",
        flag="eval-results",
        placeholder="ORG/DATASET:TASK",
    )
    source: str | None = setting(
        None,
        "address of the run's files or of a paper, for --eval-results (default: no source)",
        placeholder="URL",
    )

    def validate(self) -> None:
        """Refuse a wrong task of the Hub, a source of no result, and a card for standard output."""
        from proctor.report.claims.eval_results import HubTask

        if self.card == "-":
            raise UsageError(
                "--card=-: a card is two files, FILE.md and FILE.json; name a file",
                code="flag.invalid-value",
            )
        if self.eval_results is not None:
            HubTask.parse(self.eval_results)
        elif self.source is not None:
            raise UsageError("--source needs --eval-results", code="flag.unused")
        if self.source is not None and not self.source.startswith(("https://", "http://")):
            raise UsageError(
                f"--source={self.source} is not an address (https://...)",
                code="flag.invalid-value",
            )

    def run(self) -> int:
        """Write the requested files and return the exit code."""
        self._check_outputs()
        self._warn_of_damaged_lines()
        if self._tables:
            self._write_tables()
        if self.card is not None:
            self._write_card(self.card)
        if self.eval_results is not None:
            self._write_eval_results(self.eval_results)
        if self._writes_page:
            self._write_page()
        return 0

    def _warn_of_damaged_lines(self) -> None:
        """Print which lines of a run's journal are skipped."""
        from proctor.report.run.warnings import journal_warnings
        from proctor.runs.journal import read_journal

        for warning in journal_warnings(self.folder, read_journal(self.folder).damaged):
            print(strip_control_codes(f"warning: {warning}"), file=sys.stderr)

    @property
    def _writes_page(self) -> bool:
        return self.output is not None or not (self._tables or self.card or self.eval_results)

    @property
    def _tables(self) -> dict[str, Path | None]:
        """The requested tables and their files; None: standard output."""
        targets = {"csv": self.csv, "markdown": self.markdown}
        return {
            name: None if target == "-" else self._file(name, target) or self.folder / _FILES[name]
            for name, target in targets.items()
            if target is not None
        }

    def _file(self, name: str, target: str) -> Path | None:
        """Return the file that a flag names; None: the default, of a flag without a value."""
        from proctor.config.flags.parsing import path_of

        return None if target.lower() == "true" else path_of(target, f"--{name}")

    def _check_outputs(self) -> None:
        """Refuse files that would replace data of a run or a training, or one another."""
        from proctor.report.claims.card import card_paths
        from proctor.report.run.page import REPORT_FILE
        from proctor.runs.own_files import check_outputs

        outputs = {f"--{name}": path for name, path in self._tables.items() if path is not None}
        if self.card is not None:
            text, values = card_paths(self.folder, self._file("card", self.card))
            outputs |= {"--card (Markdown)": text, "--card (JSON)": values}
        if self._writes_page:
            outputs["--output"] = self.output or self.folder / REPORT_FILE
        check_outputs(outputs)

    def _write_page(self) -> None:
        from proctor.report.run.page import write_page
        from proctor.report.training.page import write_training_page
        from proctor.runs.training import RECORD_FILE

        if (self.folder / RECORD_FILE).is_file():
            print(f"report: {write_training_page(self.folder, self.output)}")
            return
        page = write_page(self.folder, self.output)
        self._show_robustness()
        print(f"report: {page}")

    def _show_robustness(self) -> None:
        """Print the table of perturbed against clean episodes, if tasks are perturbed."""
        from proctor.report.html.tables import table_console
        from proctor.report.robustness.table import print_robustness
        from proctor.report.run.run import load_run

        run = load_run(self.folder)
        if run.robustness is not None:
            print_robustness(run.robustness, run.sensitivity, table_console())

    def _write_tables(self) -> None:
        """Write every table to its file; on standard output, print no other line."""
        from proctor.report.run.run import load_run
        from proctor.runs.folder import write_run_file

        results = load_run(self.folder)
        texts = {"csv": results.to_csv, "markdown": results.to_markdown}
        for name, path in self._tables.items():
            if path is None:
                print(texts[name](), end="")
                continue
            write_run_file(path, texts[name]())
            print(f"{name}: {path}")

    def _write_card(self, target: str) -> None:
        from proctor.report.claims.card import write_card
        from proctor.report.claims.eval_results import HubTask, eval_results_text
        from proctor.report.run.run import load_run

        task = None if self.eval_results is None else HubTask.parse(self.eval_results)
        text, values = write_card(
            load_run(self.folder),
            self._file("card", target),
            None if task is None else lambda card: eval_results_text(card, task, self.source),
        )
        print(f"card: {text} and {values}")

    def _write_eval_results(self, target: str) -> None:
        from proctor.report.claims.eval_results import HubTask, write_eval_results
        from proctor.report.run.run import load_run

        path = write_eval_results(load_run(self.folder), HubTask.parse(target), self.source)
        print(f"eval results: {path}")


def run(words: list[str]) -> int:
    """Run the command and return its exit code."""
    return run_command(ReportCommand, "proctor report", words)
