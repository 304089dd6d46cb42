"""Results on stdout: tables for people, JSON for programs. Remarks go to stderr, for people alone."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .text import json_line, one_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Cell = str | int
Document = Mapping[str, Any]
# What a row is to a program, and what it is to a person.
Row = tuple[Document, Sequence[Cell]]

# Where stdout is not a terminal nothing says how wide it is; tables should not be cut to 80 columns then.
_WIDTH_UNKNOWN = 160


class Show:
    """One way to put things out, chosen once by --json."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json

    def outcome(self, sentence: str, document: Document) -> None:
        """What a command did: a sentence, or a document."""
        if self.as_json:
            _write(document)
        else:
            _console().print(one_line(sentence), markup=False, highlight=False, soft_wrap=True)

    def facts(self, facts: Mapping[str, Cell], document: Document) -> None:
        """One thing and what is known of it."""
        if self.as_json:
            _write(document)
            return
        table = _table(("", ""), header=False)
        for label, value in facts.items():
            table.add_row(_text(label, "bold"), _text(value), end_section=False)
        _console().print(table)

    def part(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        """A table that belongs to the facts before it; programs have it in their document."""
        if not self.as_json and rows:
            _console().print(_filled(_table(columns, title=title, numbers=_numbers(rows[0])), rows))

    def rows(self, columns: Sequence[str], rows: Iterable[Row], *, empty: str) -> None:
        """A table, or a JSON line a row. `empty` tells people why there is nothing."""
        if self.as_json:
            for document, _ in rows:
                _write(document)
            return
        cells = [cells for _, cells in rows]
        if not cells:
            self.remark(empty)
            return
        _console().print(_filled(_table(columns, numbers=_numbers(cells[0])), cells))

    def page(self, widths: Mapping[str, int | None], rows: Sequence[Row], *, header: bool) -> None:
        """A page of a table that may have no end: columns keep their widths, the last takes what is left."""
        if self.as_json:
            for document, _ in rows:
                _write(document)
        elif rows:
            table = _table(tuple(widths), header=header, widths=widths)
            _console().print(_filled(table, [cells for _, cells in rows]))
        # Whoever follows wants to see it now; whoever settles has to know that it was put out.
        sys.stdout.flush()

    def remark(self, text: str) -> None:
        """Says something beside the result."""
        if not self.as_json:
            _console(stderr=True).print(_text(text, "dim"), soft_wrap=True)

    def warn(self, text: str) -> None:
        """Says on stderr what should not go unseen, to programs too."""
        _console(stderr=True).print(_text(f"Warning: {text}", "yellow"), soft_wrap=True)


def complain(text: str) -> None:
    """The one red line that an error is."""
    _console(stderr=True).print(_text(f"Error: {text}", "red"), soft_wrap=True)


@contextmanager
def progress(label: str) -> Iterator[Callable[[int], None]]:
    """Counts on stderr, as long as that is a terminal; yields what to call with every step."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.completed:,.0f}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=_console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda count: bar.update(task, advance=count)


@contextmanager
def amount(label: str) -> Iterator[Callable[[int, int], None]]:
    """Shows on stderr, as long as that is a terminal, how much is done; yields what to tell bytes done and all."""
    if not sys.stderr.isatty():
        yield lambda _done, _whole: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=_console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, whole: bar.update(task, completed=done, total=whole)


def _write(document: Document) -> None:
    # JSON is UTF-8 whatever the locale.
    sys.stdout.buffer.write(json_line(document))


def _console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    known = stream.isatty() or "COLUMNS" in os.environ
    return Console(stderr=stderr, width=None if known else _WIDTH_UNKNOWN)


def _text(value: Cell, style: str = "") -> Any:
    from rich.text import Text

    return Text(one_line(value) if isinstance(value, str) else f"{value:,}", style=style)


def _numbers(cells: Sequence[Cell]) -> set[int]:
    return {place for place, cell in enumerate(cells) if isinstance(cell, int)}


def _table(
    columns: Sequence[str],
    *,
    title: str | None = None,
    header: bool = True,
    numbers: Iterable[int] = (),
    widths: Mapping[str, int | None] | None = None,
) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(
        title=title,
        title_justify="left",
        # Pages of one table have no rulers, so that they join.
        box=SIMPLE_HEAD if header and widths is None else None,
        show_header=header,
        expand=widths is not None,
    )
    for place, name in enumerate(columns):
        width = widths[name] if widths is not None else None
        table.add_column(
            _text(name),
            justify="right" if place in numbers else "left",
            width=width,
            ratio=1 if widths is not None and width is None else None,
            no_wrap=True,
            overflow="ellipsis",
        )
    return table


def _filled(table: Table, rows: Iterable[Sequence[Cell]]) -> Table:
    for cells in rows:
        table.add_row(*(_text(cell) for cell in cells))
    return table
