"""What the figures of figures.py stand on: where things run, what is run, and how it is told."""

import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

# A server that is not ready, or does not leave, within this is broken.
PATIENCE = 30
# A load that has not ended by then does not end.
LOAD_MAX = 3900
SERVER, CLIENT = 0, 1
# Memory that has not shrunk for so many seconds stays.
SETTLED = 10
# Servers that run, and loads: whoever stops this script stops them.
STARTED = []


def start(*args, **how):
    """A process of ours."""
    process = subprocess.Popen(*args, **how)
    STARTED.append(process)
    return process


def end(process):
    """Asks it to leave, which it may need to do the same with its own; kills what stays."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process in STARTED:
        STARTED.remove(process)


def end_all():
    for process in list(STARTED):
        end(process)


def leave_when_told():
    """Makes SIGTERM and SIGHUP an exception, as SIGINT is: what was started is ended on the way out."""

    def leave(number, _):
        for told in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(told, signal.SIG_IGN)
        sys.exit(128 + number)

    for told in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(told, leave)


class Bench:
    """Where things run, and what was run."""

    def __init__(self, binaries, scratch, quick):
        self.binaries, self.scratch, self.quick = binaries, scratch, quick
        self.pinned = os.cpu_count() > 1 and shutil.which("taskset") is not None
        self.commands = []
        # Pictures of a figure, to be put beside the page; where other systems are installed, and what else to say to
        # `turnway-bench compare`.
        self.pictures, self.peers, self.more = [], None, ""
        # Where the build before is, and what it is called.
        self.before, self.before_name = None, None
        # Loads, and those in which the generator sent later than was due.
        self.loads = self.late = 0
        # The middle of many runs outlives a bad second; a quick run only shows that it works.
        self.pick = (lambda full, quick: quick) if quick else (lambda full, quick: full)

    def command(self, core, program, *args):
        words = [str(self.binaries / program), *map(str, args)]
        return ["taskset", "-c", str(core), *words] if self.pinned else words

    def note(self, command, environment=None):
        """Remembers a command as a person would type it: ports, process ids and directories vary."""
        if self.before:
            command = [word.replace(str(self.before), "before") for word in command]
        words = [pathlib.Path(word).name if word.startswith(str(self.binaries)) else word for word in command]
        line = " ".join(f"{name}={value}" for name, value in (environment or {}).items())
        line = f"{line} {shlex.join(words)}".strip().replace(str(self.scratch), "DIR")
        line = re.sub(r"(127\.0\.0\.1):\d+", r"\1:PORT", re.sub(r"(--server-pid) \d+", r"\1 PID", re.sub(r"--port \d+", "--port PORT", line)))
        line = re.sub(r"DIR/tmp\w+", "DIR/data", re.sub(r" --json \S+", "", line))
        if line not in self.commands:
            self.commands.append(line)

    def begin(self, mode, *args, server=None, url=None, core=CLIENT, trust=None):
        """A load that has begun; whom it trusts beside the system, if it speaks TLS."""
        out = self.scratch / f"figures-{self.loads}.json"
        words = [mode, *args, "--json", out]
        if url:
            words += ["--url", url]
        if server:
            words += ["--server-pid", server.pid]
        command = self.command(core, "turnway-bench", *words)
        trusting = {"SSL_CERT_FILE": str(trust)} if trust else {}
        self.note(command, trusting)
        self.loads += 1
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return start(command, env={**os.environ, **trusting}, **pipes), command, out

    def end(self, load, fine=(0,)):
        """The figures of a load, at its end; None if it has none and may have none."""
        process, command, out = load
        try:
            said, _ = process.communicate(timeout=LOAD_MAX)
        finally:
            end(process)
        if process.returncode not in fine:
            sys.exit(f"{shlex.join(command)}\nleft with {process.returncode}:\n{said}")
        if not out.exists():
            say(said.strip())
            return None
        figures = json.loads(out.read_text())
        self.late += figures["generator"]["behind"]
        return figures

    def load(self, mode, *args, fine=(0,), **where):
        """Runs a load to its end; its figures."""
        return self.end(self.begin(mode, *args, **where), fine)

    def tell(self, mode, *args, fine=(0,), environment=None):
        """Runs a mode that has no JSON to its end; what it printed. What it says meanwhile is shown."""
        command = [str(self.binaries / "turnway-bench"), mode, *map(str, args)]
        self.note(command)
        process = start(command, stdout=subprocess.PIPE, text=True, env=environment)
        try:
            said, _ = process.communicate(timeout=2 * LOAD_MAX)
        finally:
            end(process)
        if process.returncode not in fine:
            sys.exit(f"{shlex.join(command)}\nleft with {process.returncode}:\n{said}")
        return said

    def node(self, *args, store=None, quic=None, program="turnway"):
        """A node with the demo's agents; a fresh data directory where no store is named. With so many connections by
        QUIC. Of another build, if its path is told."""
        place = tempfile.mkdtemp(dir=self.scratch)
        by_quic = ["--quic", "127.0.0.1:0", "--quic-connections", quic] if quic else ["--quic", "off"]
        listen = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", *by_quic]
        node = Server(self, SERVER, program, "serve", "--demo", *listen, "--store", store or f"embedded:{place}", *args)
        node.trust = pathlib.Path(place) / "quic" / "cert.pem"
        return node

    def bare(self, *args, quic=False):
        """A bare echo server of the same libraries."""
        place = pathlib.Path(tempfile.mkdtemp(dir=self.scratch))
        bare = Server(self, SERVER, "turnway-bench", "echo-server", *(["--quic", place] if quic else []), *args)
        bare.trust, bare.quic_url = place / "cert.pem", f"quic://{bare.address}"
        return bare


class Server:
    """A process that says where it is, once it serves. Killed by its id when it is no longer needed."""

    def __init__(self, bench, core, program, *args):
        command = bench.command(core, program, *args)
        bench.note(command)
        self.log = open(bench.scratch / "servers.log", "ab")
        self.process = start(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.log, text=True, cwd=bench.scratch
        )
        self.pid = self.process.pid
        ready = self.process.stdout.readline()
        if "ready" not in ready:
            sys.exit(f"{shlex.join(command)} is not ready: {ready!r}; see {self.log.name}")
        found = dict(re.findall(r"(http|quic|admin)=(\S+)", ready))
        self.address = found.get("http") or ready.split()[1]
        self.admin, self.url = found.get("admin"), f"ws://{self.address}"
        self.quic_url = f"quic://{found.get('quic')}"

    def metric(self, name):
        """A sample of the node's metrics; None if it has none of this name."""
        with urllib.request.urlopen(f"http://{self.admin}/metrics", timeout=PATIENCE) as page:
            text = page.read().decode()
        found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.M)
        return float(found[1]) if found else None

    def cpu(self):
        """CPU time of the process so far, in seconds."""
        fields = pathlib.Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def settle(self):
        """Waits until its memory does not shrink any more: what a load left behind is not part of a floor."""
        page, least, since = os.sysconf("SC_PAGE_SIZE"), None, time.monotonic()
        while time.monotonic() - since < SETTLED:
            rss = int(pathlib.Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * page
            if least is None or rss < 0.99 * least:
                least, since = rss, time.monotonic()
            time.sleep(0.5)

    def stop(self):
        end(self.process)
        self.process.stdout.close()
        self.log.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


class Redis(Server):
    """A redis-server as a store of record has to be, on the core of the servers."""

    def __init__(self, bench):
        place = tempfile.mkdtemp(dir=bench.scratch)
        # Debian's redis-tools has the server under the second name; what it does depends on what it is called.
        program = shutil.which("redis-server") or shutil.which("redis-check-rdb")
        if program is None:
            sys.exit("no redis-server: Debian has it in redis-tools")
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        keep = ["--save", "", "--appendonly", "yes", "--appendfsync", "always", "--maxmemory-policy", "noeviction"]
        words = ["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--dir", place, *keep]
        pin = (lambda: os.sched_setaffinity(0, {SERVER})) if bench.pinned else None
        bench.note(words)
        self.log = open(bench.scratch / "servers.log", "ab")
        self.process = start(
            words, executable=program, preexec_fn=pin, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.log, text=True
        )
        self.pid, self.url = self.process.pid, f"redis://127.0.0.1:{port}"
        for line in self.process.stdout:
            if "Ready to accept connections" in line:
                break
        else:
            sys.exit(f"{shlex.join(words)} is not ready")


# === how it is told ===


def table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def verdict(good):
    return "met" if good else "**not met**"


def say(text):
    print(text, file=sys.stderr, flush=True)
