#!/usr/bin/env python3
"""Makes the figures of docs/benchmarks.md.

    python3 benches/figures.py echo|first-delta|durable|idle|take-up|quic|many|idle-cpu|model-calls|compare|all [--quick]
    python3 benches/figures.py builds --before DIR [--quick]
    python3 benches/figures.py check [--before DIR | --against REV] [--only FIGURE,…] [--rounds N] [--write] [--quick]

`check` measures quick forms of the figures as ratios, and compares them with the page's table `check`, or with an
earlier build. It exits with 1 if a figure is more than 15 % worse, with 2 if something could not be checked, with 64
for bad arguments, and with 0 otherwise. `check --write` writes the table.

Needs the binaries of the profile `dist` (`cargo build --profile dist --workspace --bins`) and nothing beyond Python's standard
library. It starts every server itself, on free ports and in directories of its own, pins servers to core 0
and clients to core 1, ends what it started by its process id (also when it is told to stop), and writes what came out between the markers
of docs/benchmarks.md. Let nothing else run meanwhile. `--quick` makes small runs that show that the script
works; they are printed and not written, unless `--write` asks for it.
"""

import argparse
import pathlib
import resource
import shutil
import statistics
import sys
import tempfile
import time

import check
from beside import compare
from builds import builds
from crowds import idle_cpu, many, quic
from earlier import resolve
from ground import CLIENT, SERVER, Bench, Server, end_all, leave_when_told, say, table, verdict
from machine import ROOT, commit, conditions
from model_gateways import model_calls
from page import replace_block

PAGE = ROOT / "docs" / "benchmarks.md"
TARGET = ROOT / "target"


# === the figures ===


def echo(bench):
    """CPU time of a turn beside that of a bare message, in interleaved pairs."""
    pairs, duration = bench.pick((5, "10s"), (2, "2s"))
    sizes = ["--connections", 64, "--size", 64, "--duration", duration]
    rows, ratios = [], []
    for pair in range(1, pairs + 1):
        with bench.node(store="memory:") as node:
            turn = bench.load("turns", *sizes, server=node, url=node.url)
        with Server(bench, SERVER, "turnway-bench", "echo-server") as bare:
            message = bench.load("echo", *sizes, server=bare, url=bare.url)
        costs = [run["server"]["cpu_us_each"] for run in (turn, message)]
        rates = [run["throughput"]["per_second"] for run in (turn, message)]
        ratios.append(costs[0] / costs[1])
        rows.append([pair, *(f"{cost:.1f} µs" for cost in costs), *(f"{rate:,.0f}" for rate in rates), f"{ratios[-1]:.1f}"])
        say(f"  pair {pair}: {costs[0]:.1f} µs a turn, {costs[1]:.1f} µs a message, ratio {ratios[-1]:.1f}")
    middle = statistics.median(ratios)
    head = ["pair", "server CPU a turn", "server CPU a bare message", "turns/s", "messages/s", "ratio"]
    return [
        f"A turn costs the server **{middle:.1f} ×** the CPU time of a bare message there and back"
        f" (median of {pairs} interleaved pairs, {min(ratios):.1f} to {max(ratios):.1f}; goal: at most 12):"
        f" {verdict(middle <= 12)}.",
        "Store `memory:`, agent `echo`, 64 connections, inputs and messages of 64 bytes, closed loop. The bare"
        " server has the node's WebSocket library, buffers and allocator, and sends back what it gets."
        " CPU time is user and system time of the process from `/proc`.",
        table(head, rows),
    ]


def first_delta(bench):
    """What a node adds to the first text, beside single commits of the same minute."""
    rounds, duration, commit_for = bench.pick((3, "32s", "5s"), (2, "4s", "1s"))
    rows, good = [], []
    with Server(bench, CLIENT, "turnway-bench", "agent") as agent:
        direct = f"http://{agent.address}"
        with bench.node("--agent", f"lean={direct}") as node:
            commits = [commit(bench, commit_for)]
            for number in range(1, rounds + 1):
                args = ["--agent", "lean", "--direct", direct, "--rate", 100, "--duration", duration, "--connections", 8]
                run = bench.load("first-delta", *args, server=node, url=node.url)
                commits.append(commit(bench, commit_for))
                # Disks change their mind within a minute: what counts is what it cost before and after.
                single = statistics.mean(commits[-2:])
                added = {rank: run["first_delta"]["added_us"][rank] / 1000 for rank in ("p50", "p99")}
                goal = 2 * single + 0.5
                good.append((added["p50"] <= goal, added["p99"] <= 3 * goal))
                own = {way: run["latency_us"][way]["p50"] / 1000 for way in ("first_delta", "direct")}
                count = run["latency_us"]["first_delta"]["count"]
                rows.append([number, count, *(f"{own[way]:.2f} ms" for way in ("first_delta", "direct")),
                             f"{added['p50']:.2f} ms", f"{goal:.2f} ms", f"{added['p99']:.2f} ms",
                             f"{3 * goal:.2f} ms", f"{single:.2f} ms"])
                say(f"  round {number}: adds {added['p50']:.2f} ms at p50 (goal {goal:.2f}), "
                    f"{added['p99']:.2f} ms at p99 (goal {3 * goal:.2f}); one commit {single:.2f} ms")
    head = ["round", "samples", "p50 through the node", "p50 direct", "added p50", "goal", "added p99", "goal", "one commit"]
    held = [sum(part) for part in zip(*good)]
    return [
        f"What a node adds to the first text of an answer, with every input on the disk first: within the goal at"
        f" p50 in {held[0]} of {rounds} rounds, at p99 in {held[1]} of {rounds}. The goal is 2 × the median single"
        f" commit of the same minute + 0.5 ms at p50, and 3 × that at p99.",
        "Agent over HTTP and server-sent events on loopback; turns and direct requests take turns on an open loop,"
        " 50 a second each; “added” is the difference of the two percentiles. One commit is the storage engine's:"
        " 200 bytes, one fsync, nothing else, measured before and after each round on the same disk.",
        table(head, rows),
    ]


def durable(bench):
    """Durable turns a second."""
    runs, duration = bench.pick((3, "15s"), (1, "3s"))
    rows, rates = [], []
    for number in range(1, runs + 1):
        with bench.node() as node:
            before, since = node.metric("turnway_store_commits_total"), time.monotonic()
            run = bench.load("turns", "--connections", 256, "--duration", duration, server=node, url=node.url)
            took, after = time.monotonic() - since, node.metric("turnway_store_commits_total")
        single = commit(bench, "2s")
        rates.append(run["throughput"]["per_second"])
        commits = "n/a" if after is None else f"{(after - (before or 0)) / took:,.0f}"
        done = run["latency_us"]["done"]
        rows.append([number, f"{rates[-1]:,.0f}", commits, f"{done['p50'] / 1000:.1f} ms", f"{done['p99'] / 1000:.1f} ms",
                     f"{run['server']['cpu_us_each']:.0f} µs", f"{single:.2f} ms"])
        say(f"  run {number}: {rates[-1]:,.0f} turns/s, {commits} commits/s; one commit {single:.2f} ms")
    middle = statistics.median(rates)
    head = ["run", "turns/s", "commits/s", "p50 of a turn", "p99", "server CPU a turn", "one commit"]
    return [
        f"**{middle:,.0f}** durable turns a second, server and load sharing the cores (median of {runs},"
        f" {min(rates):,.0f} to {max(rates):,.0f}; goal: at least 4,000): {verdict(middle >= 4000)}.",
        "Embedded store at `fsync`, agent `echo`, 256 connections, closed loop. A turn is several durable steps, one"
        " after the other; commits are shared by the sessions that wait at the same moment.",
        table(head, rows),
    ]


def idle(bench):
    """Memory of connections that do nothing."""
    count, large, hold = bench.pick((15_000, 1_000, "30s"), (1_500, 100, "5s"))
    rows = []

    def weigh(name, *args, warm_up=False, connections=count):
        with bench.node() as node:
            if warm_up:
                for size in (64, 60_000):
                    args_before = ["--connections", 64, "--size", size, "--duration", bench.pick("20s", "4s")]
                    bench.load("turns", *args_before, server=node, url=node.url)
            node.settle()
            args = ["--connections", connections, "--duration", hold, "--sources", 8, *args]
            run = bench.load("idle", *args, server=node, url=node.url)
        found = run["idle"]
        each = found["bytes_per_connection"]
        rows.append([name, f"{found['held']:,}", f"{each:,.0f}", f"{found['rss_peak_bytes'] / 2**20:.0f} MiB",
                     f"{100 * found['closed_share_of_peak']:.0f} %", f"{100 * found['closed_share_of_growth']:.0f} %"])
        say(f"  {name}: {each:,.0f} bytes each; after closing {rows[-1][4]} of the peak")
        return each, found["closed_share_of_peak"]

    each, left = weigh("hello and one turn", warm_up=True)
    weigh("the same, on a node that has done nothing before")
    weigh("hello only", "--hello-only")
    big, _ = weigh("one message of the largest size each", "--big", large, warm_up=True, connections=large)
    head = ["connections that have had", "how many", "bytes each, idle", "most memory", "left of it", "left of the growth"]
    return [
        f"An idle connection with a session costs **{each:,.0f} bytes** of the server's resident memory (goal: at most"
        f" 4,096: {verdict(each <= 4096)}), one that has sent a message of the largest size {big:,.0f} (goal: at most"
        f" 8,192: {verdict(big <= 8192)}); when all have closed, {100 * left:.0f} % of the most memory is left (goal: at"
        f" most 20 %: {verdict(left <= 0.2)}).",
        f"From eight addresses, {hold} after the last one opened: (memory then − memory before the first) ÷"
        " connections. Before, the node has served turns until its caches were full, but for the second row:"
        " there the store's page cache (2 MiB at most, however many connections there are) grows with the first"
        " turns and is divided among them. Kernel memory of sockets is not in it.",
        table(head, rows),
    ]


def take_up(bench):
    """What a long history costs the first turn after a restart."""
    sessions, facts, restarts = bench.pick((10, 10_000, 5), (3, 1_500, 2))
    store = f"embedded:{tempfile.mkdtemp(dir=bench.scratch)}"
    with bench.node(store=store) as node:
        args = ["--connections", sessions, "--facts", facts, "--duration", "30m"]
        made = bench.load("history", *args, server=node, url=node.url)
    rows, more = [], []
    for number in range(1, restarts + 1):
        with bench.node(store=store) as node:
            run = bench.load("take-up", "--connections", sessions, server=node, url=node.url)
        long, short, new = (run["latency_us"][f"admitted_{way}"] for way in ("long", "short", "new"))
        more.append(run["take_up"]["more_us"]["p50"] / 1000)
        rows.append([number, *(f"{way['p50'] / 1000:.2f} ms" for way in (long, short)), f"{more[-1]:.2f} ms",
                     *(f"{way['max'] / 1000:.2f} ms" for way in (long, short)), f"{new['p50'] / 1000:.2f} ms"])
        say(f"  restart {number}: {long['p50'] / 1000:.2f} ms after a long history, {short['p50'] / 1000:.2f} ms after a short one")
    middle = statistics.median(more)
    head = ["restart", "long: p50", "short: p50", "difference", "long: max", "short: max", "new session: p50"]
    return [
        f"The first turn of a session with at least {made['history']['facts_least']:,} facts of history is admitted"
        f" **{middle:.2f} ms** later than that of a session with one turn (median of {restarts} restarts of {sessions}"
        f" sessions each; goal: at most 10 ms): {verdict(middle <= 10)}.",
        "From the input to its `TURN_ADMITTED`, on a node that was just started on the data directory and has none"
        " of it in memory; the kinds take turns, one at a time, so that all see the same disk. Each claims its"
        " session and stores the input, which is what most of the time goes to; what a long history costs beside"
        " is reading the last snapshot and the facts since, and the difference stands for it. A new session is"
        " made durable first, which costs more than either. The system's page cache is warm.",
        table(head, rows),
    ]


FIGURES = {
    "echo": echo,
    "first-delta": first_delta,
    "durable": durable,
    "idle": idle,
    "take-up": take_up,
    "quic": quic,
    "many": many,
    "idle-cpu": idle_cpu,
    "model-calls": model_calls,
    "compare": compare,
    "builds": builds,
}
# Nobody runs a durable node on one core beside a generator that has the other half idle; and systems that are
# compared have the machine as it is.
UNPINNED = {"durable", "compare"}


# === around them ===


def write(path, name, block, pictures):
    """Puts a figure on the page, and its pictures beside it."""
    try:
        page = replace_block(path.read_text(), name, block)
    except LookupError as error:
        sys.exit(f"{path}: {error}")
    for picture in pictures:
        (path.parent / name).mkdir(exist_ok=True)
        shutil.copy(picture, path.parent / name / picture.name)
    path.write_text(page)


class Parser(argparse.ArgumentParser):
    """A parser whose exit code for bad arguments is that of all of Turnway's commands."""

    def error(self, message):
        self.print_usage(sys.stderr)
        self.exit(64, f"{self.prog}: error: {message}\n")


def arguments():
    """Reads the command line."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figure", choices=[*FIGURES, "all", "check"])
    parser.add_argument("--quick", action="store_true", help="small runs, not written")
    parser.add_argument("--write", action="store_true", help="write quick runs, too; with `check`: write the table of ratios")
    parser.add_argument("--page", type=pathlib.Path, default=PAGE, metavar="FILE", help="the page that is read and written")
    parser.add_argument("--binaries", type=pathlib.Path, default=TARGET / "dist", metavar="DIR")
    parser.add_argument("--scratch", type=pathlib.Path, default=TARGET, metavar="DIR",
                        help="data directories are made there: it should be on the disk that is meant")
    parser.add_argument("--peers", type=pathlib.Path, default=TARGET / "peers", metavar="DIR",
                        help="where benches/peers/install put the others of `compare` and `model-calls`")
    parser.add_argument("--compare", default="", metavar="WORDS", help="more to say to `turnway-bench compare`, such as '--runs 5'")
    earlier = parser.add_mutually_exclusive_group()
    earlier.add_argument("--before", type=pathlib.Path, metavar="DIR", help="the binaries that `builds` and `check` compare with:"
                         " `turnway` of an earlier commit, made in the same way")
    earlier.add_argument("--against", metavar="REV", help="`check`: builds this earlier commit under target/against and compares with it")
    parser.add_argument("--before-name", default="the build before", metavar="WORDS", help="what the page calls it, such as its commit")
    parser.add_argument("--only", metavar="FIGURE,…", help="`check`: these figures, with commas between them")
    parser.add_argument("--rounds", type=int, default=check.ROUNDS_MIN, metavar="N", help="`check`: rounds of each figure, at least 3")
    args = parser.parse_args()
    args.only = args.only.split(",") if args.only is not None else None
    args.commit = resolve(args.against) if args.against is not None else None
    problem = bad_combination(args)
    if problem:
        parser.error(problem)
    return args


def bad_combination(args):
    """Returns the reason why these arguments do not go together; None if they do."""
    if args.figure != "check" and (args.against or args.only or args.rounds != check.ROUNDS_MIN):
        return "--against, --only and --rounds are arguments of `check`"
    if args.before and not (args.before / "turnway").exists():
        return f"--before {args.before}: no `turnway` in this directory"
    if args.figure == "builds" and not args.before:
        return "builds needs --before DIR, a directory with the `turnway` to compare with"
    if args.against is not None and args.commit is None:
        return f"--against {args.against}: no such commit"
    if args.write and args.figure == "check" and (args.before or args.against):
        return "--write is about ratios to yardsticks, not to an earlier build: leave out --before and --against"
    if args.rounds < check.ROUNDS_MIN:
        return f"--rounds {args.rounds}: at least {check.ROUNDS_MIN}, because fewer have no spread"
    if not args.scratch.is_dir() and args.scratch != TARGET:
        return f"--scratch {args.scratch}: no such directory"
    unknown = set(args.only or []) - set(check.FIGURES)
    if unknown:
        return f"--only {', '.join(sorted(unknown))}: no quick form; there are {', '.join(check.FIGURES)}"
    return None


def main():
    args = arguments()
    for program in ("turnway", "turnway-bench"):
        if not (args.binaries / program).exists():
            say(f"no {args.binaries / program}: cargo build --profile dist --workspace --bins")
            sys.exit(check.EXIT_UNCHECKED if args.figure == "check" else 1)
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files[1], files[1]))
    leave_when_told()
    try:
        if args.figure == "check":
            sys.exit(check.run(args))
        make(args)
    finally:
        end_all()


def make(args):
    every = [name for name in FIGURES if args.before or name != "builds"]
    for name in every if args.figure == "all" else [args.figure]:
        with tempfile.TemporaryDirectory(prefix="figures-", dir=args.scratch.resolve()) as scratch:
            bench = Bench(args.binaries.resolve(), pathlib.Path(scratch), args.quick)
            bench.pinned &= name not in UNPINNED
            bench.peers, bench.more = args.peers.resolve(), args.compare
            bench.before, bench.before_name = args.before and args.before.resolve(), args.before_name
            say(f"{name}:")
            where = conditions(bench)
            # Only now: the figure's function fills in its commands.
            parts = FIGURES[name](bench)
            commands = "\n".join(["```sh", *bench.commands, "```"])
            if bench.late:
                where += f" In {bench.late} of {bench.loads} loads the generator itself sent late, and latencies are partly its own."
            block = "\n\n".join([*parts, where, commands])
            print(f"{block}\n", flush=True)
            if not args.quick or args.write:
                write(args.page, name, block, bench.pictures)


if __name__ == "__main__":
    main()
