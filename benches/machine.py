"""The conditions of a measurement: the machine, its load, its disk, and the commit of this checkout."""

import datetime
import os
import pathlib
import platform
import re
import statistics
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent


def commit(bench, duration):
    """Returns the median single durable commit on this disk, now, in milliseconds."""
    run = bench.load("commit", "--dir", bench.scratch, "--duration", duration)
    return run["latency_us"]["commit"]["p50"] / 1000


def conditions(bench):
    """Describes the machine in one line, with the commit of this checkout."""
    cpu = re.search(r"^model name\s*: (.+)$", pathlib.Path("/proc/cpuinfo").read_text(), re.M)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    p50, p99 = fsync_latency(bench.scratch)
    mounts = [line.split()[1:3] for line in pathlib.Path("/proc/mounts").read_text().splitlines()]
    filesystem = max((mount for mount in mounts if bench.scratch.is_relative_to(mount[0])), key=lambda mount: len(mount[0]))
    pinned = "server on core 0, client on core 1" if bench.pinned else "nothing pinned"
    return (f"{datetime.datetime.now(datetime.timezone.utc):%F %H:%M} UTC, at {head_commit()};"
            f" {os.cpu_count()} cores ({cpu[1].strip() if cpu else platform.machine()}), {memory:.0f} GiB, Linux"
            f" {platform.release()}, {pinned}, load average {os.getloadavg()[0]:.1f} before;"
            f" {filesystem[1]}, a bare 4 KiB fdatasync {p50:.2f} ms at p50 and {p99:.2f} ms at p99.")


def fsync_latency(directory):
    """Measures the bare disk: 4 KiB appended and synced, in milliseconds, at p50 and p99."""
    took = []
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        for _ in range(200):
            file.write(bytes(4096))
            since = time.perf_counter()
            os.fdatasync(file.fileno())
            took.append((time.perf_counter() - since) * 1000)
    cuts = statistics.quantiles(took, n=100)
    return cuts[49], cuts[98]


# === commits ===


def git(*words):
    """Runs git in this checkout; returns its exit code and its output."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    return done.returncode, done.stdout.strip()


def head_commit():
    """Returns the short name of the commit that is checked out."""
    return git("rev-parse", "--short", "HEAD")[1] or "no commit"


def commit_age(name):
    """Counts the commits from this one to HEAD; None if this one is not in the history of HEAD."""
    if git("merge-base", "--is-ancestor", name, "HEAD")[0] != 0:
        return None
    return int(git("rev-list", "--count", f"{name}..HEAD")[1])
