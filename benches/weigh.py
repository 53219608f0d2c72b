#!/usr/bin/env python3
"""What an idle connection consists of, by part: the table of docs/benchmarks.md.

    cargo build --profile dist -p turnway-benches
    cargo build --profile sim -p turnway --features tikv-jemallocator/profiling --target-dir target/weigh
    python3 benches/weigh.py ws|wss|quic [--connections N] [--node FILE] [--bench FILE]

A node whose allocator remembers who asked for what (jemalloc, every allocation) is held still twice, with N idle
connections that have had hello and one turn, and with 2 N; the difference, divided by N, is put down to whoever
asked. What C libraries have of the system's allocator is asked of that. Needs gdb and addr2line. Such a node is some
times as large as any other: what its memory is as a whole, another node says (`turnway-bench idle`).
"""

import argparse
import collections
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Beside what is theirs, a connection's share of tables that grow by doubling; below this it is told as one.
LEAST = 100
DUMP = 'call (int)_rjem_mallctl("prof.dump",(void*)0,(void*)0,(void*)0,(unsigned long)0)'
IN_C = "call (void)malloc_stats()"

# Whoever is innermost of these has asked: its place in a path, then what is meant.
OWNERS = [
    (r"/quinn-[\d.]+/src/endpoint", "quinn: the channel to a connection"),
    (r"/quinn-[\d.]+/src/connection.rs .*\bnew\b", "quinn: the connection itself"),
    (r"/quinn-proto-[\d.]+/src/connection/spaces", "quinn: packets under way (an empty map's leaf)"),
    (r"/quinn-proto-[\d.]+/src/connection/mod.rs .*poll_transmit", "quinn: room for a datagram on its way out"),
    (r"/quinn-[\d.]+/src/connection.rs .*drive_transmit", "quinn: room for a datagram on its way out"),
    (r"/quinn(-proto)?-[\d.]+/", "quinn: streams, ids, queues, timers"),
    (r"/rustls-[\d.]+/src/msgs/deframer", "TLS: read buffers"),
    (r"/(rustls|tokio-rustls)-[\d.]+/|/listen/(greet|quic/greeting)", "TLS: session and keys"),
    (r"/(tokio-)?tungstenite-[\d.]+/|/hyper(-util)?-[\d.]+/", "WebSocket"),
    (r"/tokio-[\d.]+/src/runtime/io/", "tokio: the socket"),
    (r"/tokio-[\d.]+/src/runtime/task/", "tasks"),
    (r"/redb-|/gateway/src/store/", "the store's caches and the session there"),
    (r"/gateway/src/(listen|links)|/node/src/link|/wire/src/channel", "the link"),
    (r"/node/src/switchboard|/core/src/|/gateway/src/driver", "the switchboard: link and session"),
]


class Node:
    """A node under the eye of its allocator."""

    def __init__(self, binary, kind, scratch):
        self.binary, self.scratch = binary, scratch
        args = ["serve", "--demo", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--quic", "127.0.0.1:0"]
        args += ["--store", f"embedded:{scratch}/data"]
        self.trusted = scratch / "data/quic/cert.pem"
        if kind == "wss":
            subprocess.run([binary, "dev-cert", scratch / "tls"], check=True, stdout=subprocess.DEVNULL)
            self.trusted = scratch / "tls/cert.pem"
            args += ["--tls-cert", scratch / "tls/cert.pem", "--tls-key", scratch / "tls/key.pem"]
        conf = f"prof:true,lg_prof_sample:0,prof_prefix:{scratch}/heap"
        self.errors = open(scratch / "stderr", "w+")
        self.process = subprocess.Popen(
            [binary, *map(str, args)], stdout=subprocess.PIPE, stderr=self.errors, text=True,
            env=os.environ | {"_RJEM_MALLOC_CONF": conf},
        )
        ready = self.process.stdout.readline()
        port = re.search(rf"\b{'quic' if kind == 'quic' else 'http'}=\S+:(\d+)", ready)
        if port is None:
            sys.exit(f"the node did not start: {ready}")
        self.url = f"{kind}://localhost:{port[1]}"

    def weigh(self, n):
        """Bytes and pieces by who asked for them, and what is in use of the system's allocator."""
        before = self.scratch / f"gdb-{n}"
        command = ["gdb", "-p", self.process.pid, "-batch", "-ex", DUMP, "-ex", IN_C]
        with open(before, "w") as out:
            subprocess.run([*map(str, command)], stdout=out, stderr=out, check=True)
        (heap,) = self.scratch.glob(f"heap.*.{n}.m{n}.heap")
        self.errors.flush()
        text = (self.scratch / "stderr").read_text(errors="replace")
        return read(heap, self.binary), int(re.findall(r"in use bytes\s*=\s*(\d+)", text)[-1])


def read(heap, binary):
    """One dump: bytes of each stack, its addresses as they stand in the file."""
    stacks, stack, base = collections.Counter(), None, None
    for line in heap.read_text().splitlines():
        mapped = re.match(r"([0-9a-f]+)-\S+ \S+ ([0-9a-f]+) \S+ \S+\s+(.*)", line)
        if line.startswith("@"):
            stack = tuple(int(word, 16) for word in line.split()[1:])
        elif stack and line.startswith("  t*:"):
            stacks[stack] += int(line.replace(":", "").split()[2])
        elif mapped and base is None and mapped[3] == str(binary):
            base = int(mapped[1], 16) - int(mapped[2], 16)
    return {tuple(at - 1 - base for at in stack): size for stack, size in stacks.items()}


def names(addresses, binary):
    """Every address as lines of `FILE FUNCTION`, innermost first."""
    asked = "\n".join(hex(at) for at in addresses)
    command = ["addr2line", "-e", binary, "-f", "-i", "-C", "-a"]
    said = subprocess.run(command, input=asked, capture_output=True, text=True, check=True).stdout.splitlines()
    found, lines = {}, iter(said)
    for line in lines:
        if line.startswith("0x"):
            at = int(line, 16)
            found[at] = []
        else:
            found[at].append(f"{next(lines).split(':')[0]} {line}")
    return found


def owner(stack, found):
    """Who asked."""
    for at in stack:
        for line in found[at]:
            for place, name in OWNERS:
                if re.search(place, line):
                    return name
    return "other"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=["ws", "wss", "quic"])
    parser.add_argument("--connections", type=int, default=300)
    parser.add_argument("--node", type=pathlib.Path, default=ROOT / "target/weigh/sim/turnway")
    parser.add_argument("--bench", type=pathlib.Path, default=ROOT / "target/dist/turnway-bench")
    args = parser.parse_args()
    binary, n = args.node.resolve(), args.connections
    with tempfile.TemporaryDirectory() as scratch:
        node, guests, weights = Node(binary, args.kind, pathlib.Path(scratch)), [], []
        try:
            trust = os.environ | {"SSL_CERT_FILE": str(node.trusted)}
            aim = ["--url", node.url, "--server-pid", str(node.process.pid)]
            warm = [args.bench, "turns", *aim, "--connections", "16", "--duration", "3s"]
            subprocess.run(warm, env=trust, check=True, stdout=subprocess.DEVNULL)
            for step in range(2):
                idle = [args.bench, "idle", *aim, "--connections", str(n), "--duration", "10m"]
                guests.append(subprocess.Popen(idle, env=trust, stdout=subprocess.DEVNULL))
                # Until sessions have rested and are let go, as a node does it.
                time.sleep(30)
                weights.append(node.weigh(step))
        finally:
            for process in [*guests, node.process]:
                process.kill()
                process.wait()
    (first, first_c), (second, second_c) = weights
    grown = {stack: (size - first.get(stack, 0)) / n for stack, size in second.items()}
    found = names(sorted({at for stack in grown for at in stack}), binary)
    parts = collections.Counter({"keys in C (aws-lc)": (second_c - first_c) / n})
    for stack, size in grown.items():
        parts[owner(stack, found)] += size
    small = sum(size for size in parts.values() if abs(size) < LEAST)
    print("| part | bytes |\n| --- | --- |")
    for name, size in parts.most_common():
        if abs(size) >= LEAST:
            print(f"| {name} | {size:,.0f} |")
    print(f"| the rest | {small:,.0f} |\n| all | {sum(parts.values()):,.0f} |")


if __name__ == "__main__":
    main()
