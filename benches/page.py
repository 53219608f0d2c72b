"""Reads and writes docs/benchmarks.md: blocks between markers, their tables, and the ratios for `check`."""

import dataclasses
import math
import re
import statistics

from ground import table

HEAD = ["figure", "quantity", "ratio", "range", "direction", "yardstick", "at", "command"]
DIRECTIONS = {False: "lower is better", True: "higher is better"}


@dataclasses.dataclass(frozen=True)
class Expected:
    """A ratio with the range of the rounds that it is the median of."""

    ratio: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class Row:
    """One row of the table `check`: an expected ratio, and the conditions that make it comparable."""

    figure: str
    quantity: str
    expected: Expected
    more_is_better: bool
    yardstick: str
    commit: str
    command: str

    @property
    def key(self):
        return self.figure, self.quantity


# === blocks and tables ===


def markers(name):
    """Returns the lines around the block of a figure."""
    return f"<!-- figures: {name} -->", f"<!-- end of {name} -->"


def block_names(text):
    """Lists the figures that have a block on the page."""
    return re.findall(r"^<!-- figures: (\S+) -->$", text, re.M)


def block(text, name):
    """Returns the text between the markers of a figure; empty if the page has none."""
    begin, end = markers(name)
    return text.split(begin, 1)[1].split(end, 1)[0] if begin in text and end in text else ""


def replace_block(text, name, new):
    """Returns the page with another text between the markers of a figure."""
    begin, end = markers(name)
    if begin not in text or end not in text:
        raise LookupError(f"the page has no markers for {name}: {begin} and {end}")
    head, rest = text.split(begin, 1)
    return f"{head}{begin}\n{new}\n{end}{rest.split(end, 1)[1]}"


def sections(text):
    """Returns the text under each heading of the second level."""
    parts = re.split(r"^## (.+)$", text, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2]))


def first_table(text):
    """Returns the rows of the first table as dictionaries by heading."""
    lines = []
    for line in text.splitlines():
        if line.startswith("|"):
            lines.append([cell.strip() for cell in line.strip().strip("|").split("|")])
        elif lines:
            break
    return [dict(zip(lines[0], cells)) for cells in lines[2:]]


def number(cell):
    """Returns the first number of a cell such as `**3,883** bytes`."""
    found = re.search(r"-?\d[\d,]*(\.\d+)?", cell)
    if found is None:
        raise ValueError(f"no number in {cell!r}")
    return float(found[0].replace(",", ""))


# === the table `check` ===


def read_rows(text):
    """Returns the expected ratios of the page by figure and quantity."""
    rows = {}
    for cells in first_table(block(text, "check")):
        row = read_row(cells)
        rows[row.key] = row
    return rows


def read_row(cells):
    """Reads one row of the table `check`."""
    try:
        low, high = map(number, cells["range"].split(" to "))
        more_is_better = {words: more for more, words in DIRECTIONS.items()}[cells["direction"]]
        expected = Expected(number(cells["ratio"]), low, high)
        return Row(cells["figure"], cells["quantity"], expected, more_is_better, cells["yardstick"], cells["at"],
                   cells["command"].strip("`"))
    except (KeyError, ValueError) as error:
        raise ValueError(f"the page's table `check` has a row that cannot be read ({error}): {cells}") from error


def render_rows(rows):
    """Returns the table `check`."""
    return table(HEAD, [
        [row.figure, row.quantity, digits(row.expected.ratio), f"{digits(row.expected.low)} to {digits(row.expected.high)}",
         DIRECTIONS[row.more_is_better], row.yardstick, row.commit, f"`{row.command}`"]
        for row in rows
    ])


def digits(value):
    """Formats a ratio with three significant digits or more, never with an exponent, which `number` cannot read."""
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}" if value else "0"


# === what the full figures say ===


def commits(text):
    """Returns the commits at which figures of the page were made, each with the names of the figures."""
    found = {}
    # Rows of the table `check` have commits of their own.
    for name in (name for name in block_names(text) if name != "check"):
        for commit in re.findall(r"UTC, at ([0-9a-f]{7,40});", block(text, name)):
            found.setdefault(commit, []).append(name)
    for row in read_rows(text).values():
        found.setdefault(row.commit, []).append(f"check: {row.figure}")
    # A figure may have several rows.
    return {commit: list(dict.fromkeys(names)) for commit, names in found.items()}


def implied(text):
    """Returns the ratios that follow from tables of the full figures, by figure and quantity."""
    ways = {
        ("echo", "server CPU of a turn"): lambda row: number(row["ratio"]),
        ("first-delta", "added time at p50"): lambda row: number(row["added p50"]) / number(row["one commit"]),
        ("take-up", "first turn after a long history"): lambda row: number(row["long: p50"]) / number(row["short: p50"]),
        ("idle-cpu", "CPU time by WebSocket"): lambda row: number(row["ratio"]) if row["by"] == "WebSocket" else None,
        ("idle-cpu", "CPU time by QUIC"): lambda row: number(row["ratio"]) if row["by"] == "QUIC" else None,
    }
    found = {}
    for key, ratio in ways.items():
        ratios = [value for value in map(ratio, first_table(block(text, key[0]))) if value is not None]
        if ratios:
            found[key] = Expected(statistics.median(ratios), min(ratios), max(ratios))
    return found
