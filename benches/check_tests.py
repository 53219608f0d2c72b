#!/usr/bin/env python3
"""Unit tests of `figures.py check` without servers: the page, verdicts, rounds and exit codes.

    python3 benches/check_tests.py

The test `bench_figures` runs them.
"""

import argparse
import contextlib
import io
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

import check
import earlier
import figures
import page
import probes
from page import Expected, Row
from probes import NOW, YARDSTICK, Probe, Quantity

PAGE = figures.PAGE.read_text()
LESS = Quantity("echo", "server CPU of a turn", "server CPU of a bare message")
MORE = Quantity("durable", "turns a second", "bare messages a second", more_is_better=True)


def row(quantity=LESS, expected=Expected(6.0, 5.8, 6.2), commit="4cc680a", command="turnway-bench turns"):
    return Row(*quantity.key, expected, quantity.more_is_better, quantity.yardstick, commit, command)


def page_with(*rows):
    return page.replace_block("<!-- figures: check -->\n<!-- end of check -->\n", "check", page.render_rows(rows))


def verdict(expected, ratios, more_is_better=False):
    return check.judge(expected, check.middle(ratios), more_is_better)


def quietly(function, *args):
    with contextlib.redirect_stderr(io.StringIO()):
        return function(*args)


class Page(unittest.TestCase):
    def test_rows_survive_writing_and_reading(self):
        large = row(probes.PROBES[1].quantities[0], Expected(1234, 1200, 1300))
        rows = [row(), row(MORE, Expected(0.0412, 0.0401, 0.05)), large]
        self.assertEqual(list(page.read_rows(page_with(*rows)).values()), rows)

    def test_small_and_large_ratios_are_written_without_exponent(self):
        for value in (0.00001234, 0.119, 6.1, 1_234_567.0):
            self.assertAlmostEqual(page.number(page.digits(value)) / value, 1, places=2)

    def test_a_page_without_a_table_has_no_rows(self):
        self.assertEqual(page.read_rows("<!-- figures: check -->\nnone yet\n<!-- end of check -->"), {})
        self.assertEqual(page.read_rows("no markers"), {})

    def test_an_unreadable_row_is_named(self):
        for broken in ("| 6.00 |", "lower is better"), ("| 6.00 |", "| often |"), (" to ", " - "):
            with self.assertRaisesRegex(ValueError, "cannot be read"):
                page.read_rows(page_with(row()).replace(*broken))

    def test_a_missing_marker_is_an_error(self):
        with self.assertRaisesRegex(LookupError, "figures: check"):
            page.replace_block("# Figures", "check", "")

    def test_rows_of_other_figures_stay_when_one_is_written(self):
        old = {one.key: one for one in (row(), row(MORE))}
        measured = check.Measurement(MORE, "turnway-bench turns --new", [0.05, 0.04, 0.06])
        failed = check.Measurement(LESS, "turnway-bench turns", reason="no server")
        new = check.renewed(old, [measured, failed], "abcdef0")
        self.assertEqual(new[0], row())
        self.assertEqual((new[1].expected, new[1].commit), (Expected(0.05, 0.04, 0.06), "abcdef0"))
        self.assertEqual(new[1].command, "turnway-bench turns --new")

    def test_full_figures_imply_ratios(self):
        implied = page.implied(PAGE)
        self.assertEqual(set(implied), {
            ("echo", "server CPU of a turn"), ("first-delta", "added time at p50"),
            ("take-up", "first turn after a long history"), ("idle-cpu", "CPU time by WebSocket"),
            ("idle-cpu", "CPU time by QUIC"),
        })
        keys = {quantity.key for probe in probes.PROBES for quantity in probe.quantities}
        self.assertLessEqual(set(implied), keys)
        self.assertTrue(all(0 < one.low <= one.ratio <= one.high for one in implied.values()), implied)

    def test_a_row_that_contradicts_its_figure_is_listed(self):
        table = "| pair | ratio |\n| --- | --- |\n| 1 | 5.8 |\n| 2 | 6.2 |"
        figure = f"<!-- figures: echo -->\n{table}\n<!-- end of echo -->\n"
        self.assertEqual(check.disagreements(figure + page_with(row())), [])
        (line,) = check.disagreements(figure + page_with(row(expected=Expected(9.0, 8.8, 9.1))))
        self.assertIn("9.00, the figure itself 6.00 (5.80 to 6.20)", line)

    def test_every_section_with_figures_is_checked_or_has_a_reason(self):
        self.assertEqual(check.uncovered(PAGE), [])
        self.assertLessEqual(set(probes.NOT_CHECKED), set(page.sections(PAGE)))
        excused = {name for heading in probes.NOT_CHECKED for name in page.block_names(page.sections(PAGE)[heading])}
        self.assertLessEqual(set(page.block_names(PAGE)) - {"check"}, set(check.FIGURES) | excused)
        (line,) = check.uncovered("# Figures\n\n## Throughput of ducks\n\n| ducks |\n|---|\n| 3 |\n")
        self.assertIn("Throughput of ducks", line)

    def test_a_row_without_a_probe_is_listed(self):
        (line,) = check.uncovered(page_with(row(Quantity("echo", "ducks", "geese"))))
        self.assertIn("echo: ducks", line)


class Commits(unittest.TestCase):
    def test_commits_of_blocks_and_rows_are_found(self):
        figure = "<!-- figures: echo -->\n2026-11-22 06:46 UTC, at 4cc680a; 2 cores\n<!-- end of echo -->\n"
        text = figure + page_with(row(), row(MORE))
        self.assertEqual(page.commits(text), {"4cc680a": ["echo", "check: echo", "check: durable"]})

    def test_every_block_of_the_page_names_its_commit(self):
        named = {name for names in page.commits(PAGE).values() for name in names}
        # An empty block waits for its first figures.
        filled = {name for name in page.block_names(PAGE) if page.block(PAGE, name).strip()}
        self.assertLessEqual(filled - {"check"}, named)

    def test_an_unknown_commit_is_a_reason_for_the_wanted_figures_only(self):
        text = page_with(row(commit="0000000"))
        lines, reasons = check.commit_ages(text, ["echo"])
        self.assertEqual(lines, ["0000000, not in the history of HEAD: check: echo"])
        self.assertEqual(len(reasons), 1)
        self.assertEqual(check.commit_ages(text, ["durable"]), (lines, []))

    @unittest.skipIf(check.head_commit() == "no commit", "not a git checkout")
    def test_head_is_no_commit_old(self):
        self.assertEqual(check.commit_age(check.head_commit()), 0)


class Verdicts(unittest.TestCase):
    def test_a_change_within_the_margin_is_none(self):
        self.assertEqual(verdict(Expected(6, 5.8, 6.2), [6.8, 6.8, 6.8]), "same")
        self.assertEqual(verdict(Expected(6, 5.8, 6.2), [5.3, 5.3, 5.3]), "same")

    def test_a_change_beyond_margin_and_spread_counts(self):
        self.assertEqual(verdict(Expected(6, 5.8, 6.2), [7.2, 7.0, 7.1]), "worse")
        self.assertEqual(verdict(Expected(6, 5.8, 6.2), [4.9, 5.0, 5.1]), "better")

    def test_a_change_within_the_spread_is_unclear(self):
        self.assertEqual(verdict(Expected(6, 5.8, 6.2), [7.2, 6.1, 9.0]), "unclear")
        # The rounds behind the page's ratio have a spread, too.
        self.assertEqual(verdict(Expected(6, 5.8, 7.3), [7.2, 7.3, 7.4]), "unclear")
        self.assertEqual(verdict(Expected(6, 5.8, 6.2), [4.9, 3.0, 5.9]), "unclear")

    def test_more_can_be_better(self):
        expected = Expected(0.04, 0.039, 0.041)
        self.assertEqual(verdict(expected, [0.033, 0.034, 0.032], more_is_better=True), "worse")
        self.assertEqual(verdict(expected, [0.05, 0.051, 0.049], more_is_better=True), "better")
        self.assertEqual(verdict(expected, [0.036, 0.035, 0.037], more_is_better=True), "same")

    def test_five_rounds_lose_their_outermost(self):
        self.assertEqual(check.middle([1, 2, 3]), Expected(2, 1, 3))
        self.assertEqual(check.middle([9, 7.2, 7.1, 7.0, 1]), Expected(7.1, 7.0, 7.2))
        self.assertEqual(verdict(Expected(6, 5.8, 6.2), [9, 7.2, 7.1, 7.0, 1]), "worse")

    def test_other_loads_and_yardsticks_are_not_comparable(self):
        same = row()
        self.assertEqual(check.incomparable(same, LESS, same.command), "")
        self.assertIn("no ratio", check.incomparable(None, LESS, same.command))
        self.assertIn("of the load", check.incomparable(same, LESS, f"{same.command} --quick"))
        other = Quantity(*LESS.key, "ducks")
        self.assertIn("another yardstick", check.incomparable(same, other, same.command))

    def test_worse_comes_before_unchecked(self):
        self.assertEqual(check.exit_code(["same", "better", "unclear", None], []), 0)
        self.assertEqual(check.exit_code(["same", "worse"], ["no disk"]), 1)
        self.assertEqual(check.exit_code(["same"], ["no disk"]), 2)


class Rounds(unittest.TestCase):
    """Rounds of a probe whose values are given here."""

    def measured(self, values, *, expected=Expected(6, 5.8, 6.2), take=check.measure):
        """Takes three rounds; `values` has the two values of each round, or an exception."""
        self.orders, rest = [], iter(values)

        def one_round(_, order):
            self.orders.append(order)
            value = next(rest)
            if isinstance(value, BaseException):
                raise value
            return {side: {LESS.name: part} for side, part in zip((NOW, YARDSTICK), value)}

        probe = Probe("fake", (LESS,), lambda bench: "turnway-bench turns", one_round)
        planned = check.plan([probe], {"fake": None}, ["echo"])
        (measurement,) = planned["fake"]
        measurement.expected = expected
        quietly(take, [probe], {"fake": None}, planned, (NOW, YARDSTICK), 3)
        return measurement

    def test_sides_alternate_and_ratios_do_not_depend_on_the_order(self):
        found = self.measured([(12, 2), (18, 3), (7, 1)])
        self.assertEqual(found.ratios, [6, 6, 7])
        self.assertEqual(self.orders, [(NOW, YARDSTICK), (YARDSTICK, NOW), (NOW, YARDSTICK)])

    def test_a_failure_is_a_reason_and_ends_the_probe(self):
        for failure in SystemExit("turnway\nis not ready"), KeyError("idle"), OSError("no file left"):
            found = self.measured([(12, 2), failure])
            self.assertTrue(found.reason and "\n" not in found.reason, found)
            self.assertIsNone(found.verdict)

    def test_a_signal_ends_the_check(self):
        with self.assertRaises(SystemExit) as ended:
            self.measured([SystemExit(143)])
        self.assertEqual(ended.exception.code, 143)

    def test_values_without_a_ratio_are_a_reason(self):
        for values in (1, 0), (-1, 1), (float("nan"), 1):
            self.assertIn("no ratio", self.measured([values]).reason)

    def test_a_worse_figure_is_measured_again(self):
        found = self.measured([(8, 1)] * 6, take=check.measure_twice_if_worse)
        self.assertEqual((len(found.ratios), found.verdict), (6, "worse"))
        found = self.measured([(8, 1)] * 3 + [(6, 1)] * 3, take=check.measure_twice_if_worse)
        self.assertEqual(found.verdict, "unclear")
        found = self.measured([(6, 1)] * 3, take=check.measure_twice_if_worse)
        self.assertEqual((len(found.ratios), found.verdict), (3, "same"))


class Compared(unittest.TestCase):
    TABLE = ("| | Turnway | NATS |\n|---|---|---|\n| memory (KB) | **6.0** | **50.3** |\n"
             "| latency (p50 µs / p99 µs) | **163 / 340** | **126 / 244** |\n"
             "| most (messages/s) | **559,037** | **1,032,675** |\n| fan-out | **2,773,141** | {} |\n\nwords\n")

    def test_first_figure_of_each_row_is_read(self):
        found = probes.read_compared(self.TABLE.format("**1,807,670**"))
        self.assertEqual(found["Turnway"]["publish to receive at p50"], 163)
        self.assertEqual(found["NATS"]["most deliveries a second"], 1_807_670)

    def test_a_row_without_a_figure_is_an_error(self):
        with self.assertRaisesRegex(ValueError, "NATS.*stuck after 3"):
            probes.read_compared(self.TABLE.format("no figure in 1: stuck after 3"))
        with self.assertRaises(ValueError):
            probes.read_compared("| | Turnway |\n|---|---|\n")


class Arguments(unittest.TestCase):
    def exit_code(self, *words):
        """Returns the exit code of the command with these words; None if it would begin to work."""
        with tempfile.TemporaryDirectory() as scratch:
            command = ["figures.py", *words, "--scratch", scratch]
            with unittest.mock.patch.object(sys, "argv", command):
                try:
                    quietly(figures.arguments)
                except SystemExit as error:
                    return error.code
        return None

    def test_bad_arguments_leave_with_64(self):
        for words in (
            ["ducks"], ["check", "--ducks"], ["check", "--before", "/nowhere"], ["check", "--against", "no-such-commit"],
            ["check", "--against", ""], ["check", "--against", "--all"], ["check", "--before", "/", "--against", "HEAD"],
            ["check", "--write", "--against", "HEAD"], ["check", "--only", "ducks"], ["check", "--only", ""],
            ["check", "--rounds", "2"], ["check", "--rounds", "many"], ["echo", "--only", "echo"], ["builds"],
        ):
            self.assertEqual(self.exit_code(*words), 64, words)

    def test_good_arguments_are_taken(self):
        for words in ["check"], ["check", "--only", "echo,idle", "--rounds", "5", "--quick"], ["check", "--write"], ["echo"]:
            self.assertIsNone(self.exit_code(*words), words)


class Runs(unittest.TestCase):
    """Whole checks that end before a server is started."""

    def run_check(self, text, **more):
        with tempfile.TemporaryDirectory() as scratch:
            place = pathlib.Path(scratch)
            (place / "benchmarks.md").write_text(text)
            (place / "turnway").touch()
            args = argparse.Namespace(page=place / "benchmarks.md", binaries=place, scratch=place, peers=place, quick=True,
                                      write=False, before=None, commit=None, against=None, only=["echo"], rounds=3)
            vars(args).update(more)
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                return quietly(check.run, args), out.getvalue()

    def test_a_page_without_ratios_is_not_checked(self):
        code, out = self.run_check("<!-- figures: check -->\n<!-- end of check -->\n")
        self.assertEqual(code, 2)
        self.assertIn("- echo: server CPU of a turn: the page has no ratio for it", out)

    def test_a_ratio_of_another_load_is_not_checked(self):
        code, out = self.run_check(page_with(row()))
        self.assertEqual(code, 2)
        self.assertIn("is of the load `turnway-bench turns`, not `turnway-bench turns --connections 64", out)

    def test_missing_peers_are_told_and_count_only_if_asked_for(self):
        missing = "compare: no NATS in"
        _, out = self.run_check("", only=None)
        told = out.split("Could not be checked:")
        self.assertTrue(missing in told[0] and "compare: memory" not in told[1], out)
        code, out = self.run_check("", only=["compare"])
        self.assertEqual(code, 2)
        self.assertIn("- compare: memory of a connection: no NATS in", out)

    def test_what_cannot_be_read_is_not_checked(self):
        broken = page_with(row()).replace("lower is better", "purple")
        for text, more in (broken, {}), ("no markers", {"write": True}), ("", {"page": pathlib.Path("/nowhere")}):
            self.assertEqual(self.run_check(text, **more)[0], 2, more)


# Stands for `turnway` and `turnway-bench`: says that it serves, or writes the figures of a load. The file `cost` beside it
# has the CPU time of a turn; that of a bare message is 10.
PROGRAM = f"""#!{sys.executable}
import json, pathlib, signal, sys
mode = sys.argv[1]
if mode in ("serve", "echo-server"):
    print("it ready http=127.0.0.1:1 admin=127.0.0.1:2", flush=True)
    signal.pause()
cost = (pathlib.Path(sys.argv[0]).parent / "cost").read_text()
if cost == "none":
    sys.exit("the load\\nbreaks")
each = float(cost) if mode == "turns" else 10
out = pathlib.Path(sys.argv[sys.argv.index("--json") + 1])
out.write_text(json.dumps({{"generator": {{"behind": False}}, "server": {{"cpu_us_each": each}}}}))
"""


@unittest.skipIf(check.head_commit() == "no commit", "not a git checkout")
class Whole(unittest.TestCase):
    """The command itself, with programs that give any figure at once."""

    def setUp(self):
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.place = pathlib.Path(place.name)
        self.page = self.place / "benchmarks.md"
        self.page.write_text("before\n<!-- figures: check -->\n<!-- end of check -->\nafter\n")
        for program in "turnway", "turnway-bench":
            (self.place / program).write_text(PROGRAM)
            (self.place / program).chmod(0o755)

    def check(self, cost, *words):
        """Runs the command; returns its exit code and report."""
        (self.place / "cost").write_text(str(cost))
        here = ["--page", self.page, "--binaries", self.place, "--scratch", self.place]
        command = [sys.executable, figures.__file__, "check", "--quick", "--only", "echo", *here, *words]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=60)
        self.assertEqual([file.name for file in self.place.glob("check-*")], [], "directories are removed")
        return done.returncode, done.stdout

    def test_a_written_page_is_checked(self):
        self.assertEqual(self.check(60)[0], 2)
        code, out = self.check(60, "--write")
        self.assertEqual((code, "Wrote 1 ratios." in out), (0, True), out)
        text = self.page.read_text()
        self.assertTrue(text.startswith("before\n") and text.endswith("after\n"), text)
        (written,) = page.read_rows(text).values()
        self.assertEqual((written.expected, written.commit), (Expected(6, 6, 6), check.head_commit()))
        for cost, code, verdict in (
            (60, 0, "| 3 | +0 % | same |"), (68, 0, "| 3 | +13 % | same |"), (75, 1, "| 6 | +25 % | worse |"),
            (40, 0, "| 3 | -33 % | better |"), ("none", 2, "breaks"),
        ):
            found, out = self.check(cost)
            self.assertEqual((found, verdict in out), (code, True), out)
            self.assertIn("0 commits before HEAD: check: echo", out)
        self.assertEqual(self.page.read_text(), text, "a check writes nothing")

    def test_an_earlier_build_needs_no_page_row(self):
        code, out = self.check(60, "--before", self.place)
        self.assertEqual((code, "| 1.00 (1.00 to 1.00) | 3 | +0 % | same |" in out), (0, True), out)


@unittest.skipIf(check.head_commit() == "no commit", "not a git checkout")
class Earlier(unittest.TestCase):
    """Builds of an earlier commit with a `cargo` that is a script."""

    def build(self, kept, cargo):
        """Builds HEAD with this script; returns the directory with the build."""
        program = kept / "bin" / "cargo"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n{cargo}\n")
        program.chmod(0o755)
        environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}
        with unittest.mock.patch.object(earlier, "KEPT", kept):
            return quietly(earlier.build_earlier, earlier.resolve("HEAD"), environment)

    def test_a_commit_is_built_once_from_its_own_files(self):
        with tempfile.TemporaryDirectory() as kept:
            kept = pathlib.Path(kept)
            made = self.build(kept, 'mkdir -p "$CARGO_TARGET_DIR/dist"; cp Cargo.toml "$CARGO_TARGET_DIR/dist/turnway"')
            self.assertIn("[workspace]", (made / "turnway").read_text())
            self.assertEqual([file.name for file in made.iterdir()], ["turnway"])
            self.assertEqual(self.build(kept, "exit 3"), made)

    def test_a_build_that_fails_says_where_it_is(self):
        with tempfile.TemporaryDirectory() as kept, self.assertRaisesRegex(RuntimeError, "left with 3; its source is in"):
            self.build(pathlib.Path(kept), "exit 3")

    def test_only_commits_are_resolved(self):
        self.assertRegex(earlier.resolve("HEAD"), "^[0-9a-f]{40}$")
        for revision in "no-such-commit", "", "--all", "HEAD:docs":
            self.assertIsNone(earlier.resolve(revision))


if __name__ == "__main__":
    unittest.main()
