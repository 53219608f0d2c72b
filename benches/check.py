"""Compares this build with docs/benchmarks.md, or with an earlier build, by ratios that one run measures.

A figure of the page is of one machine in one hour. A check therefore measures each quantity beside a yardstick in
interleaved rounds, and compares the median of the ratios with the ratio in the page's table `check`.
"""

import contextlib
import dataclasses
import datetime
import os
import pathlib
import statistics
import tempfile
import traceback

from earlier import build_earlier
from ground import Bench, end_all, say, table
from machine import commit_age, conditions, head_commit
from page import Expected, Row, block_names, commits, digits, implied, read_rows, render_rows, replace_block, sections
from probes import BEFORE, NOT_CHECKED, NOW, PROBES, YARDSTICK

# A change counts if the median differs by more than this, and the ranges of the rounds do not overlap.
MARGIN = 0.15
ROUNDS_MIN = 3
WORSE, UNCLEAR, SAME, BETTER = "worse", "unclear", "same", "better"
EXIT_WORSE, EXIT_UNCHECKED = 1, 2
FIGURES = sorted({quantity.figure for probe in PROBES for quantity in probe.quantities})
# Sections of the page with tables that have no figures.
REFERENCE = {"`turnway-bench`", "JSON output"}
# Load average from which on a report warns: another program then has a part of a core.
LOAD_MAX = 0.5
AN_EQUAL_BUILD = Expected(1.0, 1.0, 1.0)


@dataclasses.dataclass
class Measurement:
    """The ratios of one quantity, one of each round, unless there is a reason why it cannot be checked."""

    quantity: object
    command: str
    ratios: list = dataclasses.field(default_factory=list)
    reason: str = ""
    # None if the page has no comparable ratio; this is an error only without `--write`.
    expected: Expected | None = None

    @property
    def name(self):
        return ": ".join(self.quantity.key)

    @property
    def found(self):
        return middle(self.ratios)

    @property
    def times_worse(self):
        """Factor by which the ratio is worse than expected; below 1 if it is better."""
        return change(self.expected, self.found, self.quantity.more_is_better)

    @property
    def verdict(self):
        if self.reason or not self.expected:
            return None
        return judge(self.expected, self.found, self.quantity.more_is_better)


# === verdicts ===


def middle(ratios):
    """Returns the median with the range of the rounds, without the outermost where there are five rounds or more."""
    cut = (len(ratios) - 1) // 4
    inner = sorted(ratios)[cut:len(ratios) - cut]
    return Expected(statistics.median(ratios), inner[0], inner[-1])


def change(expected, found, more_is_better):
    """Returns the factor by which a ratio is worse than the expected one."""
    return expected.ratio / found.ratio if more_is_better else found.ratio / expected.ratio


def judge(expected, found, more_is_better):
    """Returns the verdict on a ratio beside the expected one."""
    times = change(expected, found, more_is_better)
    if 1 / (1 + MARGIN) <= times <= 1 + MARGIN:
        return SAME
    if found.low <= expected.high and expected.low <= found.high:
        return UNCLEAR
    return WORSE if times > 1 else BETTER


def incomparable(row, quantity, command):
    """Returns the reason why a row of the page is not comparable; empty if it is."""
    again = "write it again with `figures.py check --write`"
    if row is None:
        return f"the page has no ratio for it: {again}"
    if row.command != command:
        return f"the page's ratio is of the load `{row.command}`, not `{command}`: {again}"
    if (row.yardstick, row.more_is_better) != (quantity.yardstick, quantity.more_is_better):
        return f"the page's ratio has another yardstick or direction: {again}"
    return ""


def exit_code(verdicts, reasons):
    """Returns 1 if a figure is worse, else 2 if something could not be checked, else 0."""
    if WORSE in verdicts:
        return EXIT_WORSE
    return EXIT_UNCHECKED if reasons else 0


# === rounds ===


def plan(probes, benches, figures):
    """Returns a measurement without ratios for each quantity of these figures, by probe."""
    return {
        probe.name: [
            Measurement(quantity, probe.command(benches[probe.name]))
            for quantity in probe.quantities
            if quantity.figure in figures
        ]
        for probe in probes
    }


def measure(probes, benches, planned, sides, rounds):
    """Takes rounds of all probes in turns, and adds the ratio of the two sides to each measurement.

    A slow minute of the machine then affects one round of each figure, not all rounds of one.
    """
    for number in range(rounds):
        # The second server of a round finds the machine as the first one left it.
        order = sides if number % 2 == 0 else sides[::-1]
        for probe in probes:
            open_ones = [measurement for measurement in planned[probe.name] if not measurement.reason]
            if open_ones:
                say(f"round {number + 1} of {rounds}, {probe.name}")
                take_round(probe, benches[probe.name], order, sides, open_ones)


def measure_twice_if_worse(probes, benches, planned, sides, rounds):
    """Takes rounds of all probes, and as many again of those with a figure that is worse.

    Rounds of one minute can agree with each other and still be of a bad minute.
    """
    measure(probes, benches, planned, sides, rounds)
    worse = [probe for probe in probes if any(measured.verdict == WORSE for measured in planned[probe.name])]
    if worse:
        say("again, because a figure is worse:")
        measure(worse, benches, planned, sides, rounds)


def take_round(probe, bench, order, sides, measurements):
    """Takes one round of one probe; a failure becomes the reason of its measurements."""
    reason = ""
    try:
        values = probe.round(bench, order)
        ours, theirs = (values[side] for side in sides)
        for measurement in measurements:
            add_ratio(measurement, ours[measurement.quantity.name], theirs[measurement.quantity.name])
    except SystemExit as error:
        # A text is a load or a server that failed (ground.py); a number is a signal to this script.
        if not isinstance(error.code, str):
            raise
        reason = one_line(error.code)
    except Exception as error:
        reason = one_line(f"{type(error).__name__}: {error}")
    finally:
        end_all()
    if reason:
        say(f"  failed: {reason}")
        for measurement in measurements:
            measurement.reason = reason


def add_ratio(measurement, ours, theirs):
    """Adds the ratio of a round; values that are not positive are a reason instead."""
    name = measurement.quantity.name
    if ours > 0 and theirs > 0:
        measurement.ratios.append(ours / theirs)
        say(f"  {name}: {ours:,.4g} and {theirs:,.4g}, ratio {digits(ours / theirs)}")
    else:
        measurement.reason = f"a round gave {ours:.4g} and {theirs:.4g}, which have no ratio: the load is too short"
        say(f"  {name}: {measurement.reason}")


def one_line(text):
    """Returns a message on one line of at most 300 characters."""
    line = " ".join(text.split())
    return line if len(line) <= 300 else f"{line[:297]}..."


# === the page ===


def renewed(rows, measurements, commit):
    """Returns the rows of the page with these measurements, in the order of the probes; rows of others stay."""
    new = dict(rows)
    for measurement in measurements:
        quantity = measurement.quantity
        if not measurement.reason:
            new[quantity.key] = Row(*quantity.key, measurement.found, quantity.more_is_better, quantity.yardstick,
                                    commit, measurement.command)
    order = [quantity.key for probe in PROBES for quantity in probe.quantities]
    return [new[key] for key in order if key in new]


def write_rows(path, measurements, rounds, where):
    """Writes measured ratios into the table `check` of the page."""
    text = path.read_text()
    rows = renewed(read_rows(text), measurements, head_commit())
    about = (f"Ratios are medians of the rounds, with their range. The last `check --write` took {rounds} rounds: {where}"
             " `durable` and `compare` are not pinned.")
    path.write_text(replace_block(text, "check", f"{render_rows(rows)}\n\n{about}"))


def disagreements(text):
    """Lists rows of the table `check` that the page's full figures contradict."""
    rows, lines = read_rows(text), []
    for key, full in implied(text).items():
        if key in rows and judge(full, rows[key].expected, rows[key].more_is_better) in (WORSE, BETTER):
            lines.append(f"{': '.join(key)}: the table `check` has {digits(rows[key].expected.ratio)}, the figure itself"
                         f" {digits(full.ratio)} ({digits(full.low)} to {digits(full.high)}): make the older one again")
    return lines


def commit_ages(text, figures):
    """Returns a line for each commit on the page, and a reason for each without an age that has one of these figures."""
    lines, reasons = [], []
    for commit, names in commits(text).items():
        age = commit_age(commit)
        distance = "not in the history of HEAD" if age is None else f"{age} commits before HEAD"
        lines.append(f"{commit}, {distance}: {', '.join(names)}")
        lost = [name for name in names if name.removeprefix("check: ") in figures]
        if age is None and lost:
            reasons.append(f"{', '.join(lost)}: made at {commit}, which is not in the history of HEAD: make it again")
    return lines, reasons


def uncovered(text):
    """Lists figures of the page that have neither a quick form nor a reason to have none."""
    known = {"check", *FIGURES}
    keys = {quantity.key for probe in PROBES for quantity in probe.quantities}
    unknown = [": ".join(key) for key in read_rows(text) if key not in keys]
    return [
        f"the section {heading!r} has figures that probes.py neither measures nor lists in NOT_CHECKED"
        for heading, body in sections(text).items()
        if "\n|" in body and heading not in REFERENCE and heading not in NOT_CHECKED and not known & set(block_names(body))
    ] + [f"the table `check` has a row that no probe measures: {name}" for name in unknown]


# === the command ===


def new_bench(args, stack, probe):
    """Returns a bench with a directory of its own that stays until all rounds are over."""
    scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="check-", dir=args.scratch.resolve()))
    bench = Bench(args.binaries.resolve(), pathlib.Path(scratch).resolve(), args.quick)
    bench.pinned &= probe.pinned
    bench.peers, bench.before = args.peers.resolve(), args.before and args.before.resolve()
    return bench


def run(args):
    """Checks, prints a report, and returns the exit code."""
    try:
        return run_unguarded(args)
    except Exception:
        # Python would leave with 1, which stands for a figure that is worse.
        traceback.print_exc()
        return EXIT_UNCHECKED


def run_unguarded(args):
    """Does what `run` says; an exception is something that could not be checked."""
    text = args.page.read_text()
    rows = read_rows(text)
    if args.write:
        # Fails now if the page has no place for the table, and not after the measurements.
        replace_block(text, "check", "")
    if args.commit:
        args.before = build_earlier(args.commit, os.environ)
    figures = args.only or FIGURES
    probes = [probe for probe in PROBES if any(quantity.figure in figures for quantity in probe.quantities)]
    sides = (NOW, BEFORE) if args.before else (NOW, YARDSTICK)
    node = args.binaries / "turnway"
    built = datetime.datetime.fromtimestamp(node.stat().st_mtime)
    say(f"{node}, built {built:%F %H:%M}, beside {args.before or args.page}")
    with contextlib.ExitStack() as stack:
        benches = {probe.name: new_bench(args, stack, probe) for probe in probes}
        planned = plan(probes, benches, figures)
        skipped = set_expected(args, probes, benches, planned, rows)
        where = conditions(benches[probes[0].name]) if args.write else ""
        load = os.getloadavg()[0]
        take = measure if args.write else measure_twice_if_worse
        take(probes, benches, planned, sides, args.rounds)
    measurements = [measurement for measured in planned.values() for measurement in measured]
    if args.write and any(not measurement.reason for measurement in measurements):
        write_rows(args.page, measurements, args.rounds, where)
        text = args.page.read_text()
    return report(args, text, measurements, skipped, load)


def set_expected(args, probes, benches, planned, rows):
    """Sets what each measurement is compared with, or the reason why this is not possible.

    Takes out probes for which this machine lacks a program; returns a line for each of them.
    """
    skipped = []
    for probe in probes:
        missing = "" if args.before else probe.missing(benches[probe.name])
        if missing and not args.only:
            planned[probe.name] = []
            skipped.append(f"{probe.name}: {missing}")
        for measurement in planned[probe.name]:
            row = rows.get(measurement.quantity.key)
            problem = "" if args.before else incomparable(row, measurement.quantity, measurement.command)
            measurement.expected = AN_EQUAL_BUILD if args.before else None if problem else row.expected
            measurement.reason = missing or ("" if args.write else problem)
    return skipped


def report(args, text, measurements, skipped, load):
    """Prints all results; returns the exit code."""
    measured = [measurement for measurement in measurements if not measurement.reason]
    reasons = [f"{measurement.name}: {measurement.reason}" for measurement in measurements if measurement.reason]
    print(table(["quantity", "expected ratio", "measured ratio", "rounds", "worse by", "verdict"], map(line, measured)))
    ages, untraceable = commit_ages(text, args.only or FIGURES)
    if not args.before:
        reasons += untraceable + uncovered(text)
    if not args.only:
        skipped += [f"{heading}: {reason}" for heading, reason in NOT_CHECKED.items()]
        skipped += [] if args.before else ["builds, as a whole: compares two builds: `figures.py check --before DIR`"]
    print_list("Not checked, because there is no quick form or a program is missing:", skipped)
    print_list("Commits of the page's figures:", ages)
    print_list("The page contradicts itself:", disagreements(text))
    print_list("Could not be checked:", reasons)
    if load > LOAD_MAX:
        print(f"\nThe load average was {load:.1f} before: ratios beside other programs are not those of a quiet machine.")
    if args.write:
        print_list(f"Rounds with a range of more than {200 * MARGIN:.0f} %, in which a check finds little; write them again on"
                   " a machine that does nothing else:", wide(measured))
        print(f"\nWrote {len(measured)} ratios.")
        return exit_code([], reasons)
    unclear, worse = ([one.name for one in measured if one.verdict == verdict] for verdict in (UNCLEAR, WORSE))
    print_list(f"Beyond {100 * MARGIN:.0f} %, but within the spread between rounds; repeat with `--rounds 5`:", unclear)
    print_list(f"More than {100 * MARGIN:.0f} % worse:", worse)
    print(f"\n{len(worse)} of {len(measured)} checked quantities are worse.")
    return exit_code([one.verdict for one in measured], reasons)


def line(measured):
    """Returns a measurement as a row of the report."""
    expected, worse_by, verdict = "-", "-", "new"
    if measured.expected:
        expected, verdict = told(measured.expected), measured.verdict
        worse_by = f"{100 * (measured.times_worse - 1):+.0f} %"
    return [measured.name, expected, told(measured.found), len(measured.ratios), worse_by, verdict]


def wide(measured):
    """Lists quantities whose rounds differ so much that few changes are outside of their range."""
    return [
        f"{one.name}: {told(one.found)}"
        for one in measured
        if (one.found.high - one.found.low) / one.found.ratio > 2 * MARGIN
    ]


def told(expected):
    """Formats a ratio with its range."""
    return f"{digits(expected.ratio)} ({digits(expected.low)} to {digits(expected.high)})"


def print_list(title, lines):
    """Prints a list under its title, unless it is empty."""
    if lines:
        print("\n".join(["", title, *(f"- {line}" for line in lines)]))
