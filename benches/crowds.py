"""The figures about many connections that do nothing: by QUIC, over a fleet, and what they cost while they rest."""

import contextlib
import math
import statistics
import time

from ground import Redis, say, table, verdict

# Of a node (core/src/limits.rs); a bare server has to send them as often.
BEAT = "25s"
# Between the last connection and the moment from which CPU time counts: sessions that rest are let go after 2 s.
REST = "15s"
# Bytes of an idle connection.
WEBSOCKET_MAX, QUIC_MAX = 4 * 1024, 36 * 1024


def quic(bench):
    """Memory and CPU time of connections by QUIC that do nothing."""
    crowds = bench.pick(((5_000, "60s"), (50_000, "120s")), ((100, "1s"), (200, "2s")))
    rows, runs = [], []
    for count, hold in crowds:
        with bench.node(quic=count + 1_000) as node:
            there = {"server": node, "url": node.quic_url, "trust": node.trust}
            bench.load("turns", "--connections", 64, "--size", 64, "--duration", bench.pick("20s", "2s"), **there)
            if not bench.quick:
                node.settle()
            args = ["--connections", count, "--sources", 8, "--rest", REST if not bench.quick else "1s"]
            run = bench.load("idle", *args, "--duration", hold, "--grace", "5m", **there)
        runs.append(run)
        rows.append(row(run))
        say(f"  {count:,}: {told(run)}")
    last = runs[-1]["idle"]
    each, asked = last["bytes_per_connection"], runs[-1]["connections"]
    head = ["connections", "until all were there", "server CPU each, until then", "bytes each, idle", "CPU while idle",
            "closed or broken", "answered in the end"]
    return [
        f"**{last['held']:,}** of {asked:,} connections by QUIC on one node are there after {hold}, and"
        f" {last['answered']:,} answer when they are spoken to again: {verdict(last['answered'] == asked)}. Each costs"
        f" **{each:,.0f} bytes** of the server's resident memory (goal: at most {QUIC_MAX:,}: {verdict(each <= QUIC_MAX)}),"
        f" and all of them {100 * last['idle_cpu_share']:.1f} % of a core while they rest.",
        "Each has said hello and had one turn. They come from eight addresses, and those of one address share one UDP"
        " socket, so that neither side needs more than a few files. CPU while idle is that of the node, in percent of one"
        " core, from 15 s after the last one had its turn: its beats every 25 s and what is answered to them. In the end"
        " each says `ping` and has to hear `pong`.",
        table(head, rows),
    ]


def many(bench):
    """Sixty thousand connections over five nodes and a Redis."""
    nodes, each, hold = bench.pick((5, 12_000, "120s"), (5, 50, "4s"))
    with contextlib.ExitStack() as stack:
        redis = stack.enter_context(Redis(bench))
        fleet = [stack.enter_context(bench.node(store=redis.url)) for _ in range(nodes)]
        loads, began = [], redis.cpu()
        args = ["--connections", each, "--sources", 8, "--rest", REST if not bench.quick else "1s"]
        for node in fleet:
            loads.append(bench.begin("idle", *args, "--duration", hold, "--grace", "5m", server=node, url=node.url))
        most, moments = watch(fleet, loads)
        runs = [bench.end(load) for load in loads]
        redis_cpu = redis.cpu() - began
    rows = []
    for number, run in enumerate(runs, 1):
        rows.append([number, *row(run)])
        say(f"  node {number}: {told(run)}")
    count, answered = nodes * each, sum(run["idle"]["answered"] for run in runs)
    middle = statistics.median(run["idle"]["bytes_per_connection"] for run in runs)
    share = sum(run["idle"]["idle_cpu_share"] for run in runs)
    head = ["node", "connections", "until all were there", "server CPU each, until then", "bytes each, idle",
            "CPU while idle", "closed or broken", "answered in the end"]
    return [
        f"**{most:,.0f}** WebSockets at the same time over {nodes} nodes on one Redis, each with a session that has had a"
        f" turn, of {count:,} that were to be there; {answered:,} answered in the end: {verdict(answered == count <= most)}."
        f" Each costs its node **{middle:,.0f} bytes** (median of the nodes; goal: at most {WEBSOCKET_MAX:,}:"
        f" {verdict(middle <= WEBSOCKET_MAX)}), and all of them cost all nodes {100 * share:.1f} % of a core while they rest.",
        f"Nodes and Redis on the same core, one load for each node, connected directly. How many there were at the same"
        f" time is what the nodes told of themselves (`turnway_link_connections`), looked at {moments} times. Redis has"
        f" `appendfsync always` and took {redis_cpu:.1f} s of CPU time in all. A process may have 20,000 files open on this"
        " machine, of which a node keeps some for agents, its store and operators: sixty thousand connections need five.",
        table(head, rows),
    ]


def idle_cpu(bench):
    """CPU time of connections that do nothing, beside that of a bare server with the same libraries."""
    count, pairs, window = bench.pick((5_000, 3, "120s"), (100, 1, "2s"))
    args = ["--connections", count, "--sources", 8, "--rest", REST if not bench.quick else "1s", "--duration", window]
    rows, ratios = [], {}
    for road in ("WebSocket", "QUIC"):
        is_quic = road == "QUIC"
        for pair in range(1, pairs + 1):
            with bench.node(quic=count + 1_000 if is_quic else None) as node:
                url = node.quic_url if is_quic else node.url
                ours = bench.load("idle", *args, "--grace", "2m", server=node, url=url, trust=node.trust if is_quic else None)
            with bench.bare("--beat", BEAT, quic=is_quic) as bare:
                url = bare.quic_url if is_quic else bare.url
                trust = bare.trust if is_quic else None
                theirs = bench.load("idle", "--bare", *args, "--grace", "2m", server=bare, url=url, trust=trust)
            took = [spent(run) for run in (ours, theirs)]
            # In a quick run there may be no beat at all.
            ratio = took[0] / took[1] if took[1] else float("nan")
            ratios.setdefault(road, []).append(ratio)
            rows.append([road, pair, *(f"{seconds * 1000:,.0f} ms" for seconds in took), f"{ratio:.2f}"])
            say(f"  {road}, pair {pair}: {took[0]:.2f} s and {took[1]:.2f} s, ratio {ratio:.2f}")
    middle = {road: statistics.median(found) for road, found in ratios.items()}
    head = ["by", "pair", "CPU time of a node", "CPU time of a bare server", "ratio"]
    of_each = " and ".join(f"**{ratio:.2f} ×** by {road} ({held(ratio)})" for road, ratio in middle.items())
    return [
        f"While {count:,} connections do nothing for {window}, a node takes {of_each} of the CPU time of a bare server with the"
        f" same libraries and as many connections (medians of {pairs} interleaved pairs; goal: at most 1.5).",
        f"On both sides the server beats every {BEAT}, the node's with a tenth more or less: pings by WebSocket, keep-alives"
        f" by QUIC. Connections of the node have had one turn each, those of the bare server one message. CPU time is user"
        f" and system time of the process from `/proc`, from {REST[:-1]} s after the last connection on. All connections were"
        " there in the end and answered.",
        table(head, rows),
    ]


# === around them ===


def row(run):
    found = run["idle"]
    count = run["connections"]
    return [f"{count:,}", f"{found['opened_s']:.1f} s", f"{1e6 * found['opening_cpu_s'] / count:,.0f} µs",
            f"{found['bytes_per_connection']:,.0f}", f"{100 * found['idle_cpu_share']:.2f} %",
            f"{count - found['held']:,}", f"{found['answered']:,}"]


def told(run):
    found = run["idle"]
    return (f"{found['opened_s']:.1f} s until all were there, {found['bytes_per_connection']:,.0f} bytes each,"
            f" {100 * found['idle_cpu_share']:.2f} % of a core, {found['answered']:,} answered")


def held(ratio):
    return "no beat fell into so short a time" if math.isnan(ratio) else verdict(ratio <= 1.5)


def spent(run):
    """CPU time while idle, in seconds."""
    return run["idle"]["idle_cpu_user_s"] + run["idle"]["idle_cpu_system_s"]


def watch(fleet, loads):
    """The most connections that all nodes together had at one moment, until the first load ends; how often it looked."""
    most, moments = 0, 0
    while all(process.poll() is None for process, _, _ in loads):
        there = [node.metric('turnway_link_connections{transport="websocket"}') or 0 for node in fleet]
        most, moments = max(most, sum(there)), moments + 1
        time.sleep(1)
    return most, moments
