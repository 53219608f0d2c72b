"""The figure about calls of models: the time that Turnway, LiteLLM and Portkey add to a call, calls a second, and memory."""

import contextlib
import json
import os
import pathlib
import re
import shlex
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request

from ground import CLIENT, PATIENCE, SERVER, Server, end, say, start, table, verdict

# Goals: the time added to the first byte in milliseconds, and calls a second as a multiple of LiteLLM's.
ADDED_MAX, TIMES_LITELLM = 0.35, 5
# An upstream for each way of answering: the pause between two pieces of a stream. A long one keeps streams open, and ends them
# within minutes if a gateway does not see that its caller has gone.
PAUSES = {"at-once": "0ms", "paced": "5ms", "held": "30s"}
# Calls a second: few, because a gateway near its most would be measured with its queue; and no divisor of a second, so that
# calls do not keep step with timers of a millisecond.
RATE = 19
# LiteLLM takes ten seconds to load on a free core, and minutes on a busy one.
START_MAX = 10 * PATIENCE
DIRECT, TURNWAY, LITELLM, PORTKEY = "direct", "Turnway", "LiteLLM", "Portkey"
# Rows of the table in milliseconds: the load, the measured time, and the rank.
TIMES = {
    "stream: first byte, p50": ("stream", "first_byte", "p50"),
    "stream: first byte, p99": ("stream", "first_byte", "p99"),
    "stream: whole call, p50": ("stream", "whole_call", "p50"),
    "stream: whole call, p99": ("stream", "whole_call", "p99"),
    "JSON: whole call, p50": ("whole", "whole_call", "p50"),
    "JSON: whole call, p99": ("whole", "whole_call", "p99"),
}


class Gateway:
    """A way to the upstreams: directly, or through a gateway that listens at a port and runs as one process."""

    def __init__(self, name, urls, pid=None, header=None, fine=(0, 1)):
        self.name, self.urls, self.pid, self.header, self.fine = name, urls, pid, header, fine

    def call(self, bench, kind, *args):
        """Runs a load of calls of one upstream; None if it has no figures."""
        headers = self.header(kind) if self.header else []
        words = ["--model", kind, *[word for header in headers for word in ("--header", header)], *args]
        return bench.load("models", *words, server=self if self.pid else None, url=self.urls[kind], fine=self.fine)


class Peer:
    """A gateway of others, which serves once a call through it is answered. Killed by its id."""

    def __init__(self, bench, command, environment, port, headers):
        self.log = open(bench.scratch / "peers.log", "ab")
        words = ["taskset", "-c", str(SERVER), *command] if bench.pinned else command
        bench.note(words)
        # Nothing of the caller's environment reaches it: it needs no keys, and asks no proxy.
        own = {"PATH": os.environ["PATH"], "HOME": str(bench.scratch), "TMPDIR": str(bench.scratch), **environment}
        self.process = start(words, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, env=own, cwd=bench.scratch)
        self.pid, self.url = self.process.pid, f"http://127.0.0.1:{port}/v1"
        self.wait(headers)

    def wait(self, headers):
        """Waits until a call succeeds."""
        body = json.dumps({"model": "at-once", "messages": [{"role": "user", "content": "ready?"}]}).encode()
        plain = {"content-type": "application/json", "authorization": "Bearer none"}
        request = urllib.request.Request(f"{self.url}/chat/completions", body, {**plain, **headers})
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        since, why = time.monotonic(), "it did not begin"
        while time.monotonic() - since < START_MAX and self.process.poll() is None:
            try:
                with opener.open(request, timeout=PATIENCE) as answer:
                    return answer.read()
            except urllib.error.HTTPError as error:
                why = f"{error.code}: {error.read()[:500]}"
            except OSError as error:
                why = error
            time.sleep(0.2)
        sys.exit(f"{shlex.join(map(str, self.process.args))} is not ready ({why}); see {self.log.name}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        end(self.process)
        self.log.close()


# === the gateways ===


def direct(bench, stack, upstreams):
    """Returns the upstreams themselves."""
    return Gateway(DIRECT, {kind: f"http://{server.address}/v1" for kind, server in upstreams.items()}, fine=(0,))


def turnway(bench, stack, upstreams):
    """Starts a node with a model for each upstream."""
    models = [f"{kind}=http://{server.address}/v1,calls=4096" for kind, server in upstreams.items()]
    words = [word for model in models for word in ("--model", model)]
    node = stack.enter_context(bench.node(*words, store="memory:"))
    return Gateway(TURNWAY, dict.fromkeys(upstreams, f"http://{node.address}/v1"), node.pid, fine=(0,))


def litellm(bench, stack, upstreams):
    """Starts LiteLLM's proxy with one worker, because it has one core; without a database and telemetry."""
    port = free_port()
    models = [
        {"model_name": kind, "litellm_params": {"model": f"openai/{kind}", "api_base": f"http://{server.address}/v1", "api_key": "none"}}
        for kind, server in upstreams.items()
    ]
    config = bench.scratch / "litellm.yaml"
    # JSON is YAML.
    config.write_text(json.dumps({"model_list": models, "litellm_settings": {"telemetry": False}}))
    words = ["--config", str(config), "--host", "127.0.0.1", "--port", str(port), "--num_workers", "1", "--telemetry", "False"]
    # The table of prices is its own, not the one of its repository; logs of each call would be part of its figures.
    environment = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MODE": "PRODUCTION", "LITELLM_LOG": "ERROR",
                   # Like the others, it asks callers for no key.
                   "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true"}
    peer = Peer(bench, [str(bench.peers / "litellm" / "bin" / "litellm"), *words], environment, port, {})
    stack.enter_context(peer)
    return Gateway(LITELLM, dict.fromkeys(upstreams, peer.url), peer.pid)


def portkey(bench, stack, upstreams):
    """Starts Portkey's gateway, which is told the upstream by headers of each call."""
    port = free_port()
    hosts = {kind: f"http://{server.address}/v1" for kind, server in upstreams.items()}
    script = bench.peers / "portkey" / "node_modules" / "@portkey-ai" / "gateway" / "build" / "start-server.js"
    told = lambda kind: {"x-portkey-provider": "openai", "x-portkey-custom-host": hosts[kind]}
    environment = {"NODE_ENV": "production", "TRUSTED_CUSTOM_HOSTS": "127.0.0.1"}
    peer = Peer(bench, ["node", str(script), f"--port={port}", "--headless"], environment, port, told("at-once"))
    stack.enter_context(peer)
    header = lambda kind: [f"{name}: {value}" for name, value in told(kind).items()]
    return Gateway(PORTKEY, dict.fromkeys(upstreams, peer.url), peer.pid, header)


def free_port():
    """Returns a port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def versions(bench):
    """Returns the version of each installed gateway."""
    found = {}
    own = subprocess.run([bench.binaries / "turnway", "--version"], capture_output=True, text=True, check=True).stdout
    found[TURNWAY] = own.split()[1]
    for path in (bench.peers / "litellm").glob("lib/python*/site-packages/litellm-*.dist-info"):
        found[LITELLM] = re.fullmatch(r"litellm-(.+)\.dist-info", path.name)[1]
    package = bench.peers / "portkey" / "node_modules" / "@portkey-ai" / "gateway" / "package.json"
    if package.exists():
        found[PORTKEY] = json.loads(package.read_text())["version"]
    return found


WAYS = {DIRECT: direct, TURNWAY: turnway, LITELLM: litellm, PORTKEY: portkey}


# === the figure ===


def model_calls(bench):
    """The same calls directly and through each gateway, in turns."""
    rounds = bench.pick(5, 1)
    there = versions(bench)
    missing = [name for name in (LITELLM, PORTKEY) if name not in there]
    for name in missing:
        say(f"{name} is left out: not in {bench.peers}; `benches/peers/install {name.lower()}`")
    with contextlib.ExitStack() as stack:
        upstreams = {}
        for kind, pause in PAUSES.items():
            upstreams[kind] = stack.enter_context(Server(bench, CLIENT, "turnway-bench", "model-upstream", "--pause", pause))
        ways = [begin(bench, stack, upstreams) for name, begin in WAYS.items() if name not in missing]
        memory = {way.name: hold(bench, way) for way in ways if way.pid}
        found = {way.name: [] for way in ways}
        for number in range(1, rounds + 1):
            for way in ways:
                found[way.name].append(measure(bench, way))
                say(f"  round {number}, {way.name}: {told(found[way.name][-1])}")
    bench.commands = [normalized(bench, line) for line in bench.commands]
    added = {name: {row: added_times(found, name, row) for row in TIMES} for name in found}
    bench.pictures = [draw(bench, added, found, memory)]
    left_out = [f"{name} was not installed, and is left out." for name in missing]
    return [
        " ".join([summary(added, found), *left_out]), conditions_of(rounds, there),
        "\n".join([table(["", *found], rows(added, found, memory))]),
        f"![{bench.pictures[0].stem}](model-calls/{bench.pictures[0].name})",
    ]


def measure(bench, way):
    """Runs one round of one way; returns its figures by load."""
    paced = ["--connections", 8, "--rate", RATE, "--duration"]
    return {
        "stream": way.call(bench, "paced", "--stream", *paced, bench.pick("6s", "1s")),
        "whole": way.call(bench, "at-once", *paced, bench.pick("4s", "1s")),
        "full": way.call(bench, "at-once", "--stream", "--connections", 32, "--duration", "2s"),
    }


def hold(bench, way):
    """Returns resident bytes before and with open streams, and their number: half if the gateway cannot hold all."""
    for count in bench.pick((1000, 500), (50,)):
        run = way.call(bench, "held", "--stream", "--hold", "--connections", count, "--duration", bench.pick("3s", "1s"))
        if run and run["models"]["held"] == count:
            before, held = (run["models"][f"rss_{moment}_bytes"] for moment in ("before", "held"))
            say(f"  {way.name}: {before / 2**20:.0f} MiB, {held / 2**20:.0f} MiB with {count} open streams")
            return before, held, count
    return None


def added_times(found, name, row):
    """Returns what a way adds to a time in each round, in milliseconds; the time itself for the direct way."""
    load, measure, rank = TIMES[row]
    values = []
    for own, base in zip(found[name], found[DIRECT]):
        if own[load] and measure in own[load]["latency_us"]:
            less = 0 if name == DIRECT else base[load]["latency_us"][measure][rank]
            values.append((own[load]["latency_us"][measure][rank] - less) / 1000)
    return values


def rates(found, name):
    """Returns complete calls a second of each round."""
    return [run["full"]["throughput"]["per_second"] for run in found[name] if run["full"]]


def failures(found, name):
    """Counts calls without a complete answer over all rounds."""
    return sum(run[load]["counts"]["mismatches"] for run in found[name] for load in run if run[load])


def rows(added, found, memory):
    """Returns the rows of the table."""
    lines = [[row, *(spread(added[name][row], "{:.2f}", " ms") for name in found)] for row in TIMES]
    lines.append(["calls a second, 32 at a time", *(spread(rates(found, name), "{:,.0f}", "") for name in found)])
    cpu = {name: [run["full"]["server"]["cpu_us_each"] for run in found[name] if run["full"] and run["full"]["server"]
                  and run["full"]["server"]["cpu_us_each"]] for name in found}
    lines.append(["CPU time of the gateway for such a call", *(spread(cpu[name], "{:,.0f}", " µs") for name in found)])
    for title, part in (("resident memory before", 0), ("resident memory with open streams", 1)):
        lines.append([title, *(weight(memory.get(name), part) for name in found)])
    lines.append(["calls without a complete answer", *(f"{failures(found, name):,}" for name in found)])
    return lines


def spread(values, form, unit):
    """Formats a median with the least and the most."""
    if not values:
        return "–"
    low, middle, high = (form.format(value) for value in (min(values), statistics.median(values), max(values)))
    return f"**{middle}**{unit} ({low}–{high})"


def weight(memory, part):
    """Formats memory."""
    if memory is None:
        return "–"
    return f"{memory[part] / 2**20:,.0f} MiB" + (f" ({memory[2]:,})" if part else "")


def summary(added, found):
    """Compares Turnway with the goals."""
    first = statistics.median(added[TURNWAY]["stream: first byte, p50"])
    calls = statistics.median(rates(found, TURNWAY))
    text = (f"Turnway adds **{first:.2f} ms** to the first byte of a stream at p50 (goal: at most {ADDED_MAX} ms:"
            f" {verdict(first <= ADDED_MAX)}), and passes **{calls:,.0f}** streams a second on with one core")
    theirs = rates(found, LITELLM) if LITELLM in found else []
    if not theirs or not statistics.median(theirs):
        return f"{text}."
    ratio = calls / statistics.median(theirs)
    return f"{text}, **{ratio:.1f} ×** LiteLLM's (goal: at least {TIMES_LITELLM}: {verdict(ratio >= TIMES_LITELLM)})."


def conditions_of(rounds, there):
    """Describes loads and rows."""
    paced = PAUSES["paced"].replace("ms", " ms")
    names = ", ".join(f"{name} {version}" for name, version in there.items())
    return (f"{names}. Medians of {rounds} interleaved rounds, least and most in parentheses. Times of gateways are what they add:"
            f" the percentile through the gateway less that of direct calls in the same round. The upstream answers with 8"
            f" pieces of text, one each {paced} in the rows of times, all in one write in the row of calls a second;"
            f" times at {RATE} calls a second (open loop), 8 connections. The direct column of calls a second is what load"
            f" generator and upstream can do together on the other core. Memory is that of a gateway that has just"
            f" started, after the first piece of each stream.")


def told(run):
    """Summarizes one round for the terminal."""
    parts = []
    for load, measure in (("stream", "first_byte"), ("stream", "whole_call"), ("whole", "whole_call")):
        latency = run[load] and run[load]["latency_us"].get(measure)
        parts.append(f"{load} {measure} {latency['p50'] / 1000:.2f}/{latency['p99'] / 1000:.2f} ms" if latency else f"no {load}")
    full = run["full"]
    return ", ".join([*parts, f"{full['throughput']['per_second']:,.0f} calls/s" if full else "no calls/s"])


def normalized(bench, line):
    """Returns a command without paths and ports of this machine."""
    return re.sub(r"--port=\d+", "--port=PORT", line.replace(str(bench.peers), "target/peers"))


# === the picture ===

WIDTH, LEFT, RIGHT, BAR, STEP, HEAD = 760, 110, 190, 22, 34, 56
OURS, OTHERS = "#d55e00", "#0072b2"


def draw(bench, added, found, memory):
    """Writes the picture: a panel of bars for the added time, for calls a second, and for memory."""
    gateways = [name for name in found if name != DIRECT]
    # With the number of streams, because a gateway may have held half of them.
    held = {f"{name} ({memory[name][2]:,})": [memory[name][1] / 2**20] for name in gateways if memory.get(name)}
    panels = [
        ("Added to the first byte of a stream, p50", "ms", {name: added[name]["stream: first byte, p50"] for name in gateways}, "{:.2f}"),
        ("Added to a whole call with JSON, p50", "ms", {name: added[name]["JSON: whole call, p50"] for name in gateways}, "{:.2f}"),
        ("Calls a second with one core, 32 at a time", "calls/s", {name: rates(found, name) for name in gateways}, "{:,.0f}"),
        ("Resident memory with open streams", "MiB", held, "{:,.0f}"),
    ]
    drawn, top = [], 0
    for title, unit, bars, form in panels:
        bars = {name: values for name, values in bars.items() if values}
        drawn.append(panel(top, title, unit, bars, form))
        top += HEAD + STEP * len(bars) + 12
    text = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" width="{WIDTH}" height="{top}"'
            ' font-family="DejaVu Sans, Helvetica, Arial, sans-serif" font-size="13" fill="#222">\n'
            f'<rect width="100%" height="100%" fill="#fff"/>\n{"".join(drawn)}</svg>\n')
    path = pathlib.Path(bench.scratch) / "model-calls.svg"
    path.write_text(text)
    return path


def panel(top, title, unit, bars, form):
    """Draws a bar for each median, with a line from the least to the most."""
    most = max([1e-9, *(max(values) for values in bars.values())])
    scale = lambda value: LEFT + max(0, value) * (WIDTH - LEFT - RIGHT) / most
    lines = [f'<text x="16" y="{top + 24}" font-size="16">{title}</text>',
             f'<text x="16" y="{top + 43}" fill="#666">{unit}; median, least to most</text>']
    for place, (name, values) in enumerate(bars.items()):
        y, middle = top + HEAD + STEP * place, statistics.median(values)
        colour = OURS if name.startswith(TURNWAY) else OTHERS
        lines += [
            f'<text x="{LEFT - 8}" y="{y + BAR / 2 + 4.5:.1f}" text-anchor="end">{name}</text>',
            f'<rect x="{LEFT}" y="{y}" width="{scale(middle) - LEFT:.1f}" height="{BAR}" fill="{colour}"/>',
            f'<line x1="{scale(min(values)):.1f}" x2="{scale(max(values)):.1f}" y1="{y + BAR / 2}" y2="{y + BAR / 2}"'
            ' stroke="#222" stroke-width="2"/>',
            f'<text x="{scale(max(values)) + 8:.1f}" y="{y + BAR / 2 + 4.5:.1f}">{form.format(middle)}</text>',
        ]
    return "\n".join(lines) + "\n"
