"""Measures quick forms of the figures of docs/benchmarks.md, each beside a yardstick in the same round. Judges nothing.

A side of a round is the node under test (NOW), its yardstick (YARDSTICK), or the node of an earlier build (BEFORE). The
values of two sides of one round give a ratio, which a noisy or slower machine hardly changes.
"""

import contextlib
import dataclasses
import functools
import os
import typing

from crowds import BEAT, spent
from ground import CLIENT, Redis, Server
from machine import commit
from page import first_table, number

NOW, YARDSTICK, BEFORE = "now", "yardstick", "before"


@dataclasses.dataclass(frozen=True)
class Quantity:
    """A value that a probe measures; it belongs to a figure of the page."""

    figure: str
    name: str
    yardstick: str
    more_is_better: bool = False

    @property
    def key(self):
        return self.figure, self.name


@dataclasses.dataclass(frozen=True)
class Probe:
    """Measures some quantities: `round` returns a dictionary of values by name for each side."""

    name: str
    quantities: tuple
    # The load as a person would type it: with another load the page's ratio is not comparable.
    command: typing.Callable
    round: typing.Callable
    pinned: bool = True
    # The reason why this machine cannot run the probe without an earlier build; empty if it can.
    missing: typing.Callable = lambda bench: ""


def side_by_side(measure, bench, sides):
    """Measures one side after the other, in this order."""
    return {side: measure(bench, side) for side in sides}


def node(bench, side, *args, **more):
    """Starts a node of the build under test or of the earlier build."""
    return bench.node(*args, program=bench.before / "turnway" if side == BEFORE else "turnway", **more)


def words(*args):
    """Returns a command of the load generator as text."""
    return " ".join(["turnway-bench", *map(str, args)])


# === turns ===


def turns(bench):
    """Returns the arguments of a load that keeps one turn, or one bare message, open on each connection."""
    return ["--connections", 64, "--size", 64, "--duration", bench.pick("3s", "1s")]


def bare_messages(bench, args):
    """Runs a load of bare messages at an echo server of the node's libraries."""
    with bench.bare() as bare:
        return bench.load("echo", *args, server=bare, url=bare.url)


def echo(bench, side):
    """Measures the CPU time of a turn, or of a bare message."""
    if side == YARDSTICK:
        run = bare_messages(bench, turns(bench))
    else:
        with node(bench, side, store="memory:") as server:
            run = bench.load("turns", *turns(bench), server=server, url=server.url)
    return {"server CPU of a turn": run["server"]["cpu_us_each"]}


def first_delta_load(bench):
    """Returns the arguments of a load of turns and direct requests to the agent."""
    return ["--rate", 100, "--duration", bench.pick("6s", "1s"), "--connections", 8]


def first_delta(bench, side):
    """Measures the time that a node adds to the first text, or that of a single commit."""
    if side == YARDSTICK:
        return {"added time at p50": 1000 * commit(bench, bench.pick("1s", "500ms"))}
    with Server(bench, CLIENT, "turnway-bench", "agent") as agent:
        direct = f"http://{agent.address}"
        with node(bench, side, "--agent", f"lean={direct}") as server:
            args = ["--agent", "lean", "--direct", direct, *first_delta_load(bench)]
            run = bench.load("first-delta", *args, server=server, url=server.url)
    return {"added time at p50": run["first_delta"]["added_us"]["p50"]}


def durable_load(bench):
    """Returns the arguments of a load with enough connections to share commits."""
    return ["--connections", 256, "--duration", bench.pick("4s", "1s")]


def durable(bench, side):
    """Measures durable turns, or bare messages: how many a second, and their CPU time."""
    if side == YARDSTICK:
        run = bare_messages(bench, durable_load(bench))
    else:
        with node(bench, side) as server:
            run = bench.load("turns", *durable_load(bench), server=server, url=server.url)
    return {"turns a second": run["throughput"]["per_second"], "server CPU of a durable turn": run["server"]["cpu_us_each"]}


def redis(bench, side):
    """Measures the CPU time of a node and of Redis for a turn, or of a bare server for a message."""
    if side == YARDSTICK:
        each = bare_messages(bench, turns(bench))["server"]["cpu_us_each"]
        return {"server CPU of a turn, Redis": each, "CPU of Redis for a turn": each}
    with Redis(bench) as store, node(bench, side, "--durability", "mem", store=store.url) as server:
        before = store.cpu()
        run = bench.load("turns", *turns(bench), server=server, url=server.url)
        spent_by_redis = store.cpu() - before
    each = 1e6 * spent_by_redis / run["latency_us"]["done"]["count"]
    return {"server CPU of a turn, Redis": run["server"]["cpu_us_each"], "CPU of Redis for a turn": each}


def paced_load(bench):
    """Returns the arguments of a load far below the most that a node takes."""
    return [*turns(bench), "--rate", 400]


def paced(bench, side):
    """Measures the time until a mostly idle node accepts a turn, or that of a single commit."""
    if side == YARDSTICK:
        return {"p50 until accepted": 1000 * commit(bench, bench.pick("1s", "500ms"))}
    with node(bench, side) as server:
        run = bench.load("turns", *paced_load(bench), server=server, url=server.url)
    return {"p50 until accepted": run["latency_us"]["accepted"]["p50"]}


# === sessions with a history ===


def history_load(bench):
    """Returns the arguments that give sessions a long history; the first two are those of `take-up`."""
    sessions, facts = bench.pick((10, 5_000), (3, 200))
    return ["--connections", sessions, "--facts", facts, "--duration", "10m"]


def take_up(bench, side):
    """Measures the first turn after a long history, divided by that after one turn: both are in the same load."""
    if side == YARDSTICK:
        return {"first turn after a long history": 1.0}
    # Builds do not share a directory: the earlier one may not read the format of this one.
    place = bench.scratch / f"take-up-{side}"
    store, sessions = f"embedded:{place}", history_load(bench)[:2]
    restarts = 1
    if not place.exists():
        with node(bench, side, store=store) as server:
            bench.load("history", *history_load(bench), server=server, url=server.url)
        # The first restart after the history is slower than those that follow.
        restarts = 2
    for _ in range(restarts):
        with node(bench, side, store=store) as server:
            run = bench.load("take-up", *sessions, server=server, url=server.url)
    long, short = (run["latency_us"][f"admitted_{length}"]["p50"] for length in ("long", "short"))
    return {"first turn after a long history": long / short}


# === idle connections ===


def resting_load(bench):
    """Returns the arguments of a load that opens connections and leaves them idle."""
    # A server pings each connection once in a window that is as long as the interval of pings.
    count, rest, window = bench.pick((5_000, "15s", BEAT), (100, "1s", "2s"))
    return ["--connections", count, "--sources", 8, "--rest", rest, "--duration", window, "--grace", "2m"]


def resting(bench, sides):
    """Measures memory and CPU time of idle connections: of all servers at once, because they hardly use the core."""
    with contextlib.ExitStack() as stack:
        loads = {}
        for side in sides:
            for transport, (server, url, trust) in resting_servers(bench, stack, side).items():
                bare = ["--bare"] if side == YARDSTICK else []
                begun = bench.begin("idle", *bare, *resting_load(bench), server=server, url=url, trust=trust)
                loads[side, transport] = begun
        runs = {key: bench.end(begun) for key, begun in loads.items()}
    return {side: resting_values(runs, side) for side in sides}


def resting_servers(bench, stack, side):
    """Starts the servers of one side; returns server, URL and certificate by transport."""
    if side == YARDSTICK:
        plain = stack.enter_context(bench.bare("--beat", BEAT))
        by_quic = stack.enter_context(bench.bare("--beat", BEAT, quic=True))
        return {"WebSocket": (plain, plain.url, None), "QUIC": (by_quic, by_quic.quic_url, by_quic.trust)}
    count = resting_load(bench)[1]
    plain = stack.enter_context(node(bench, side))
    by_quic = stack.enter_context(node(bench, side, quic=count + 1_000))
    store = stack.enter_context(Redis(bench))
    shared = stack.enter_context(node(bench, side, store=store.url))
    return {
        "WebSocket": (plain, plain.url, None),
        "QUIC": (by_quic, by_quic.quic_url, by_quic.trust),
        "Redis": (shared, shared.url, None),
    }


def resting_values(runs, side):
    """Returns the values of one side from the figures of its loads."""
    plain, by_quic = runs[side, "WebSocket"], runs[side, "QUIC"]
    # A bare server has no store: the yardstick of a node on Redis is the same as without.
    shared = runs.get((side, "Redis"), plain)
    return {
        "bytes of a WebSocket": plain["idle"]["bytes_per_connection"],
        "bytes of a WebSocket, Redis": shared["idle"]["bytes_per_connection"],
        "bytes of a connection by QUIC": by_quic["idle"]["bytes_per_connection"],
        "server CPU to open one by QUIC": by_quic["idle"]["opening_cpu_s"],
        "CPU time by WebSocket": spent(plain),
        "CPU time by QUIC": spent(by_quic),
    }


# === Turnway beside NATS ===

# Rows of `turnway-bench compare`, of which the first figure counts.
COMPARED = {
    "memory of a connection": "idle",
    "publish to receive at p50": "latency",
    "most messages a second": "max",
    "most deliveries a second": "fanout",
}


def compare_load(bench):
    """Returns the arguments of a comparison that has one run of each row."""
    return ["--rows", ",".join(COMPARED.values()), "--runs", 1, *bench.pick([], ["--quick"])]


def compare(bench, sides):
    """Measures Turnway and NATS with the same loads in the order of the sides, or two builds of Turnway."""
    if YARDSTICK in sides:
        order = ",".join("nats" if side == YARDSTICK else "turnway" for side in sides)
        cells = compared(bench, bench.binaries / "turnway", order)
        return {side: cells["NATS" if side == YARDSTICK else "Turnway"] for side in sides}
    programs = {NOW: bench.binaries / "turnway", BEFORE: bench.before and bench.before / "turnway"}
    return {side: compared(bench, programs[side], "turnway")["Turnway"] for side in sides}


def compared(bench, program, systems):
    """Runs the rows once; returns values by name for each system."""
    args = ["--into", bench.scratch / "compare", "--installed", bench.peers, "--peers", systems, *compare_load(bench)]
    text = bench.tell("compare", *args, fine=(0, 1), environment={**os.environ, "TURNWAY_BIN": str(program)})
    return read_compared(text)


def read_compared(text):
    """Reads the table of `turnway-bench compare` whose rows are those of `COMPARED`."""
    found = {}
    for name, cells in zip(COMPARED, first_table(text), strict=True):
        for system, cell in list(cells.items())[1:]:
            if not cell.startswith("**"):
                raise ValueError(f"{system}, {name}: {cell}")
            found.setdefault(system, {})[name] = number(cell)
    return found


def missing_peers(bench):
    """Returns a reason if NATS is not installed."""
    there = (bench.peers / "nats" / "bin" / "nats-server").exists()
    return "" if there else f"no NATS in {bench.peers}: `benches/peers/install nats`"


# === all of them ===

BARE_CPU = "server CPU of a bare message"
PROBES = (
    Probe("echo", (Quantity("echo", "server CPU of a turn", BARE_CPU),),
          lambda bench: words("turns", *turns(bench)), functools.partial(side_by_side, echo)),
    Probe("first-delta", (Quantity("first-delta", "added time at p50", "one commit"),),
          lambda bench: words("first-delta", *first_delta_load(bench)), functools.partial(side_by_side, first_delta)),
    Probe("durable", (Quantity("durable", "turns a second", "bare messages a second", more_is_better=True),
                      Quantity("durable", "server CPU of a durable turn", BARE_CPU)),
          lambda bench: words("turns", *durable_load(bench)), functools.partial(side_by_side, durable), pinned=False),
    Probe("redis", (Quantity("builds", "server CPU of a turn, Redis", BARE_CPU),
                    Quantity("builds", "CPU of Redis for a turn", BARE_CPU)),
          lambda bench: words("turns", *turns(bench)), functools.partial(side_by_side, redis)),
    Probe("paced", (Quantity("builds", "p50 until accepted", "one commit"),),
          lambda bench: words("turns", *paced_load(bench)), functools.partial(side_by_side, paced)),
    Probe("take-up", (Quantity("take-up", "first turn after a long history", "the same after one turn"),),
          lambda bench: words("history", *history_load(bench)), functools.partial(side_by_side, take_up)),
    Probe("resting", (Quantity("idle", "bytes of a WebSocket", "bytes at a bare server"),
                      Quantity("many", "bytes of a WebSocket, Redis", "bytes at a bare server"),
                      Quantity("quic", "bytes of a connection by QUIC", "bytes at a bare server"),
                      Quantity("quic", "server CPU to open one by QUIC", "CPU of a bare server"),
                      Quantity("idle-cpu", "CPU time by WebSocket", "CPU time of a bare server"),
                      Quantity("idle-cpu", "CPU time by QUIC", "CPU time of a bare server")),
          lambda bench: words("idle", *resting_load(bench)), resting),
    Probe("compare", (Quantity("compare", "memory of a connection", "NATS"),
                      Quantity("compare", "publish to receive at p50", "NATS"),
                      Quantity("compare", "most messages a second", "NATS", more_is_better=True),
                      Quantity("compare", "most deliveries a second", "NATS", more_is_better=True)),
          lambda bench: words("compare", *compare_load(bench)), compare, pinned=False, missing=missing_peers),
)

# Parts of the page without a quick form, by heading, with the reason.
NOT_CHECKED = {
    "Cost of a turn": "CPU time by part needs `perf`; the turn pipeline needs `cargo bench`",
    "Added time to the first text": "the 99th percentile: a few seconds have too few samples",
    "Memory of idle connections": "memory after the largest message and after closing: both need a minute of load that"
                                  " fills the caches first",
    "Memory of a connection by part": "needs a node whose allocator records allocations, and gdb",
    "Loss under faults": "counts of tests that run for minutes to hours: `./test`, `./test long NAME`",
    "A bad network": "needs network namespaces: `./test long loss`",
    "A fleet": "three nodes that are killed again and again, for minutes to hours: `./test`, `./test long fleet`",
    "Storms": "10,000 clients for minutes: `./test long storms`",
    "Bindings of conversations": "a million bindings on each store, fifteen minutes: `./test long binding-pace`; `./test`"
                                 " runs 20,000 of them and checks counts of calls instead of times",
    "Files": "a hundred uploads of 16 s each: `BLOB_UPLOADS=100 ./test only load::uploads_at_a_time`; `./test` has fewer",
    "Calls of models": "other gateways, and the 99th percentile: `figures.py model-calls`, six minutes; the test"
                       " `bench_figures` runs Turnway's part",
    "Beside others": "other systems than NATS, rows with two nodes, counts of lost messages, stalled subscribers: twenty"
                     " minutes and more; the test `compare` checks the counts",
}
