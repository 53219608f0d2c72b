"""The figure about two builds beside each other: what a change costs."""

import statistics

from ground import Redis, say, table

# A figure that is worse by more than this is said first.
MARGIN = 0.03
# What is measured of each build, and whether more of it is better.
MEASURED = {
    "server CPU a turn, memory store": ("µs", False),
    "turns/s, memory store": ("", True),
    "durable turns/s, embedded store": ("", True),
    "p50 until accepted at 400 turns/s, embedded store": ("µs", False),
    "turns/s, Redis": ("", True),
    "server CPU a turn, Redis": ("µs", False),
    "CPU of Redis a turn": ("µs", False),
    "CPU of two nodes a delta, relayed between them": ("µs", False),
    "bytes of an idle connection": ("", False),
}


def builds(bench):
    """What a turn and a connection cost with this build, and with the one before."""
    pairs = bench.pick(3, 1)
    found = {"before": [], "now": []}
    for pair in range(pairs):
        # Whoever comes first finds the machine as the other left it.
        for build in ("before", "now") if pair % 2 == 0 else ("now", "before"):
            found[build].append(measure(bench, build))
            say(f"  pair {pair + 1}, {build}: " + ", ".join(f"{value:,.1f}" for value in found[build][-1].values()))
    rows, worse = [], []
    for name, (unit, more_is_better) in MEASURED.items():
        before, now = ([run[name] for run in found[build]] for build in ("before", "now"))
        ratios = [new / old for old, new in zip(before, now)]
        middle = statistics.median(ratios)
        if (1 / middle if more_is_better else middle) > 1 + MARGIN:
            worse.append(f"{name} (× {middle:.2f})")
        rows.append([name, told(before, unit), told(now, unit), f"**{middle:.3f}**", f"{min(ratios):.2f} to {max(ratios):.2f}"])
    verdict = f"Worse by more than {100 * MARGIN:.0f} %: {', '.join(worse)}." if worse else f"No figure is worse by more than {100 * MARGIN:.0f} %."
    head = ["figure", "before: median (range)", "now: median (range)", "now ÷ before, median of the pairs", "range"]
    return [
        f"{verdict} {pairs} interleaved pairs of this build with {bench.before_name}.",
        "Both builds with the profile `dist`, driven by the same generator: 64 connections, inputs of 64 bytes, closed"
        " loop, agent `echo`, unless it says otherwise; Redis on the core of the node, with `appendfsync always`, the"
        " node at `--durability mem`; deltas: 32 connections at one node, answers of 400 words, one every 2 ms, of"
        " sessions that the other node owns. The order within a pair changes from pair to pair.",
        table(head, rows),
    ]


def told(values, unit):
    digits = 1 if statistics.median(values) < 1000 else 0
    low, middle, high = (f"{value:,.{digits}f}" for value in (min(values), statistics.median(values), max(values)))
    return f"{middle} {unit}".strip() + f" ({low} to {high})"


def measure(bench, build):
    """One build, once; in the order of `MEASURED`."""
    program = bench.before / "turnway" if build == "before" else "turnway"
    duration = bench.pick("6s", "1s")
    turns = ["--connections", 64, "--size", 64, "--duration", duration]
    with bench.node(store="memory:", program=program) as node:
        memory = bench.load("turns", *turns, server=node, url=node.url)
    with bench.node(program=program) as node:
        embedded = bench.load("turns", *turns, server=node, url=node.url)
        paced = bench.load("turns", *turns, "--rate", 400, server=node, url=node.url)
    with Redis(bench) as redis, bench.node("--durability", "mem", store=redis.url, program=program) as node:
        before = redis.cpu()
        fleet = bench.load("turns", *turns, server=node, url=node.url)
        redis_cpu = redis.cpu() - before
    relayed_cpu = measure_relay(bench, program)
    with bench.node(program=program) as node:
        if not bench.quick:
            node.settle()
        idle = bench.load("idle", "--connections", bench.pick(5_000, 200), "--hello-only", "--sources", 8, "--duration",
                          bench.pick("10s", "1s"), server=node, url=node.url)
    values = [
        memory["server"]["cpu_us_each"],
        memory["throughput"]["per_second"],
        embedded["throughput"]["per_second"],
        paced["latency_us"]["accepted"]["p50"],
        fleet["throughput"]["per_second"],
        fleet["server"]["cpu_us_each"],
        1e6 * redis_cpu / fleet["latency_us"]["done"]["count"],
        relayed_cpu,
        idle["idle"]["bytes_per_connection"],
    ]
    return dict(zip(MEASURED, values))


def measure_relay(bench, program):
    """Microseconds of both nodes for each delta of a session that the other node owns."""
    def node(redis):
        return bench.node("--durability", "mem", store=redis.url, program=program)

    with Redis(bench) as redis, node(redis) as owner, node(redis) as edge:
        before = owner.cpu() + edge.cpu()
        load = bench.load("stream", "--connections", 32, "--tokens", 400, "--pace", "2ms", "--duration",
                          bench.pick("6s", "1s"), "--begin-at", owner.url, server=edge, url=edge.url)
        spent = owner.cpu() + edge.cpu() - before
    return 1e6 * spent / load["counts"]["deltas"]
