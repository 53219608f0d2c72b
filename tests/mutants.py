"""./test mutants [N] [--diff BASE]: changes of the product that no test sees.

cargo-mutants lists every small change (a mutant) of the product's crates: another return value, another operator, an
arm that is gone. N of them are drawn; each is made in a copy of the sources, built, and held against tests:

- the tests of the changed crate itself: `cargo test -p CRATE`, without those in its documentation;
- then the files of tests/tests that FILES names for the changed source file: for core/, wire/, node/, tool_executor/,
  pipeline/ and sdk/
  built with the changed crate (the simulator, the model of the store, the clients), for gateway/ run against the changed
  node; those that LINKED names call its library, and are built with it.

A mutant is caught if a test fails, missed if none does, unviable if it does not compile, and has timed out if tests
took TIMES as long as without it. The kill ratio is caught / (caught + missed). What only other files of tests/tests see
(a fleet, a browser, a flood) counts as missed, so the ratio is a lower bound.

State is kept in target/mutants: a run that was stopped goes on where it was, as long as neither the product nor the
arguments have changed. MUTANTS_SEED is the number that N mutants are drawn by, MUTANTS_MINUTES the most that one run
takes (60): what is left of the sample then is said to be not run.
"""
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / "target" / "mutants"
TREE, BUILD, LOGS = HOME / "tree", HOME / "build", HOME / "logs"
CARGO_MUTANTS = ROOT / "target" / "tools" / "bin" / "cargo-mutants"
SAMPLE, OUTCOMES = HOME / "sample.json", HOME / "outcomes.jsonl"
CRATES = {
    "turnway-core": "core",
    "turnway-pipeline": "pipeline",
    "turnway-wire": "wire",
    "turnway-bindings": "bindings",
    "turnway-node": "node",
    "turnway-tool-executor": "tool_executor",
    "turnway": "gateway",
    "turnway-client": "sdk/rust",
}
# Files of tests/tests that judge a gateway mutant in any case, from the quickest on: all that clients, agents and
# operators do with one node, and in `quiet` a bit of everything on Redis, by TLS and by QUIC too.
NODE_TESTS = [
    "http_reads", "http_problems", "commands", "serve", "health", "http_turns", "agents", "steering", "identity", "dialin",
    "quiet",
]
# Files of tests/tests that judge a mutant before NODE_TESTS, by the start of its path. The first row that fits holds.
FILES = [
    ("core/src/store", ["differential", "simulation"]),
    ("core", ["simulation", "messages", "codec", "handover", "members", "differential"]),
    ("node/src/connection", ["link", "dialin_machine", "tool_runner"]),
    ("node/src/link", ["link", "messages", "simulation"]),
    ("wire/src/channel", ["frames", "messages", "openai"]),
    ("wire/src/agent", ["agents", "dialin_machine", "dialin"]),
    ("wire/src/runner", ["tool_runner"]),
    ("wire", ["frames", "messages", "trunk"]),
    ("node/src/dialin", ["dialin_machine", "dialin"]),
    ("node/src/remote_attempts", ["trunk", "dialin"]),
    ("node/src/runner", ["tool_runner"]),
    ("tool_executor", ["toolbox_machine", "tenant_names", "tool_runner"]),
    ("node", ["simulation", "order", "link"]),
    ("pipeline", ["plugins"]),
    ("sdk/rust", ["client", "commands", "chat"]),
    ("gateway/src/store/embedded", ["embedded_store", "store_damage", "store_copies", "differential", "restore"]),
    ("gateway/src/store/redis", ["redis_line", "redis_store"]),
    ("gateway/src/redis", ["redis_line", "redis_store"]),
    ("gateway/src/bus", ["bus", "redis_line"]),
    ("gateway/src/listen/quic", ["quic"]),
    ("gateway/src/listen", ["bad_input", "http_edges", "tls", "quic"]),
    ("gateway/src/tls", ["tls", "quic"]),
    ("gateway/src/cli/chat", ["chat"]),
    ("gateway/src/cli/tool_runner", ["tool_runner"]),
    ("gateway/src/cli", ["commands", "chat"]),
    ("gateway/src/tools", ["tool_runner", "tools"]),
    ("gateway/src/metrics", ["metrics"]),
    ("gateway/src/http/openai", ["openai"]),
    ("gateway/src/http", ["http_edges", "http_examples", "resume", "authority"]),
    ("gateway/src/agent", ["agents", "plugins", "openai", "resume"]),
    ("gateway/src/auth", ["identity", "tenants", "authority"]),
    ("gateway/src/keys", ["identity", "authority"]),
    ("gateway/src/rates", ["shares", "identity"]),
    ("gateway/src/config", ["commands", "deploy"]),
    ("gateway", ["restore", "resume", "blast_radius"]),
]
# Files of tests/tests that call the gateway's library: they are built anew with each mutant of gateway/ that they judge.
LINKED = {"bus", "differential", "embedded_store", "metrics", "redis_line", "redis_store", "store_copies", "store_damage"}
# A test binary may take so many times as long as without a mutant, and at least so many seconds.
TIMES, SECONDS_MIN = 5, 60
PROFILE = "mutants"
NODE = ["cargo", "build", "--locked", "--profile", PROFILE, "-p", "turnway", "-p", "turnway-example-node", "--bins"]
# Sizes of the long tests, as `./test quick` has them.
SIZES = {
    "SIM_FROM": "1795312778000", "SIM_SECONDS": "20", "TORN_HISTORIES": "100", "DIFFERENTIAL_SEQUENCES": "100",
    "CHAOS_KILLS": "3", "RESUME_DISCONNECTS": "100",
}
MISSED = ("missed", "no test")
# One mutant may take so long to build; more, and it has timed out.
BUILD_SECONDS_MAX = 600
# Mutants of one crate in a row, so that others need not be built anew for each: a run that stops early has run a fair
# part of the sample all the same.
ROUND = 10


def fail(why, code=1):
    print(f"mutants: {why}")
    sys.exit(code)


# === the copy of the sources ===


def tracked():
    """The project's files, as git has them or, without git, as they lie there."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode == 0:
        paths = [Path(line) for line in listed.stdout.splitlines()]
    else:
        skipped = {"target", ".git", "__pycache__", "turnway-data"}
        walked = (path.relative_to(ROOT) for path in ROOT.rglob("*"))
        paths = [path for path in walked if not skipped & set(path.parts)]
    return sorted(path for path in paths if (ROOT / path).is_file())


def copy_sources():
    """Brings the copy up to date. A file that is the same is not touched, so that it is not built again."""
    paths = tracked()
    for path in paths:
        text, to = (ROOT / path).read_bytes(), TREE / path
        if not to.is_file() or to.read_bytes() != text:
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(text)
            shutil.copymode(ROOT / path, to)
    for path in [path for path in TREE.rglob("*") if path.is_file()]:
        if path.relative_to(TREE) not in set(paths):
            path.unlink()


def digest():
    """A number for the state of the product: its sources and what they are built with."""
    digest = hashlib.sha256()
    for path in tracked():
        if path.name in ("Cargo.toml", "Cargo.lock") or str(path).startswith(tuple(f"{d}/" for d in CRATES.values())):
            digest.update(f"{path}\n".encode() + (ROOT / path).read_bytes())
    return digest.hexdigest()


# === the sample ===


def listed(base):
    """Every mutant there is, or those of what differs from a commit."""
    command = [str(CARGO_MUTANTS), "mutants", "--list", "--json", "--no-config"]
    for crate in CRATES:
        command += ["--package", crate]
    if base:
        folders = list(CRATES.values())
        diff = subprocess.run(["git", "diff", base, "--", *folders], cwd=ROOT, capture_output=True, text=True)
        if diff.returncode != 0:
            fail(f"git diff {base}: {diff.stderr.strip()}", 64)
        (HOME / "base.diff").write_text(diff.stdout)
        if not diff.stdout.strip():
            return []
        command += ["--in-diff", str(HOME / "base.diff")]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if found.returncode != 0:
        fail(f"cargo mutants --list: {found.stderr.strip()}")
    return json.loads(found.stdout or "[]")


def draw(count, base):
    """The sample of the run that was stopped, or a new one."""
    seed = os.environ.get("MUTANTS_SEED")
    wanted = {"digest": digest(), "count": count, "base": base}
    if SAMPLE.is_file():
        sample = json.loads(SAMPLE.read_text())
        same = all(sample[key] == value for key, value in wanted.items()) and seed in (None, sample["seed"])
        if same and (seed or len(outcomes()) < len(sample["mutants"])):
            return sample
    seed = seed or str(random.SystemRandom().randrange(1 << 32))
    mutants = listed(base)
    # By hashes: the same in every release of Python, and the first of a larger sample are those of a smaller one.
    order = sorted(mutants, key=lambda mutant: hashlib.sha256(f"{seed} {mutant['name']}".encode()).digest())
    kept = [{key: m[key] for key in ("name", "package", "file", "span", "replacement")} for m in order[:count]]
    sample = {**wanted, "seed": seed, "of": len(mutants), "mutants": kept}
    OUTCOMES.unlink(missing_ok=True)
    shutil.rmtree(LOGS, ignore_errors=True)
    SAMPLE.write_text(json.dumps(sample, indent=1))
    return sample


def outcomes():
    """What is known already, by the mutant's name."""
    lines = OUTCOMES.read_text().splitlines() if OUTCOMES.is_file() else []
    return {outcome["name"]: outcome for outcome in map(json.loads, lines)}


# === building and testing ===


def environment():
    changed = {
        "CARGO_TARGET_DIR": str(BUILD),
        "CARGO_INCREMENTAL": "1",
        "CARGO_TERM_COLOR": "never",
        "TURNWAY_BIN": str(BUILD / PROFILE / "turnway"),
        "TEST_LOGS": str(LOGS / "nodes"),
        "RUST_BACKTRACE": "0",
        "TURNWAY_PYTHON": str(ROOT / "target" / "venv" / "bin" / "python"),
        "PROMETHEUS_BIN": str(ROOT / "target" / "prometheus" / "usr" / "bin"),
    }
    return {**SIZES, **os.environ, **changed}


def run(command, cwd, log, seconds):
    """Whether a command went well; none where it took too long. What it started ends with it."""
    with open(log, "a") as to:
        process = subprocess.Popen(
            command, cwd=cwd, env=environment(), stdin=subprocess.DEVNULL, stdout=to, stderr=to, start_new_session=True
        )
        try:
            return process.wait(max(seconds, 1)) == 0
        except subprocess.TimeoutExpired:
            return None
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()


def build(arguments, log, seconds):
    """Builds tests; the executables by name, or none, and whether time was up."""
    out = HOME / "built.jsonl"
    out.unlink(missing_ok=True)
    command = f'exec "$@" >{out}'
    cargo = ["cargo", "test", "--locked", "--profile", PROFILE, "--no-run", "--message-format", "json", *arguments]
    built = run(["bash", "-c", command, "build", *cargo], TREE, log, seconds)
    if not built:
        return None, built is None
    found = []
    for line in out.read_text().splitlines():
        artifact = json.loads(line)
        if artifact.get("executable") and artifact.get("profile", {}).get("test"):
            folder = Path(artifact["manifest_path"]).parent
            found.append((artifact["target"]["name"], artifact["executable"], folder))
    return found, False


def judges(mutant):
    """The files of tests/tests that a mutant is held against, in order."""
    named = next(files for start, files in FILES if mutant["file"].startswith(start))
    return named + [name for name in NODE_TESTS if is_node(mutant) and name not in named]


def is_node(mutant):
    """Whether most files of tests/tests can stay as they are, and only the node is built anew."""
    return mutant["package"] == "turnway"


class Suite:
    """Tests, with the time they take without a mutant."""

    def __init__(self, end, mutants):
        self.end, self.mutants, self.seconds, self.node_tests, self.skipped = end, mutants, {}, {}, {}

    def left(self):
        return self.end - time.monotonic()

    def own(self, crate, log, seconds):
        """Builds a crate's own tests within so many seconds, and the node where it is the crate of the node."""
        end = time.monotonic() + seconds
        bins = ["--bins"] if crate == "turnway" else []
        found, late = build(["-p", crate, "--lib", "--tests", *bins], log, seconds)
        if found is not None and crate == "turnway":
            built = run(NODE, TREE, log, end - time.monotonic())
            if not built:
                return None, built is None
        return found, late

    def files(self, names, log, seconds):
        """Builds files of tests/tests within so many seconds, and the node that they start."""
        end = time.monotonic() + seconds
        built = run(NODE, TREE, log, seconds)
        if not built:
            return None, built is None
        found, late = build(["-p", "turnway-tests", *(word for name in names for word in ("--test", name))], log, end - time.monotonic())
        return found and sorted(found, key=lambda test: names.index(test[0])), late

    def prepare(self, crate):
        """Builds and runs everything without a mutant: only tests that pass then can tell one."""
        log = LOGS / f"without-{crate}.log"
        log.unlink(missing_ok=True)
        begun = time.monotonic()
        # The first build has all the time there is: it builds what the crate leans on.
        tests, late = self.own(crate, log, self.left())
        names = list(dict.fromkeys(name for m in self.mutants if m["package"] == crate for name in judges(m)))
        files = []
        if tests is not None:
            files, late = self.files(names, log, self.left())
        if tests is None or files is None:
            return "time" if late and self.left() < 1 else fail(f"{crate} does not build: {log}")
        self.node_tests = {name: (name, executable, folder) for name, executable, folder in files}
        built = time.monotonic()
        for name, executable, folder in tests + files:
            if not self.measured(name, executable, folder, log):
                return "time"
        took = f"built in {built - begun:.0f} s, tests take {time.monotonic() - built:.0f} s"
        print(f"{crate} without a mutant: {took}", flush=True)
        return None

    def measured(self, name, executable, folder, log):
        """Runs a file without a mutant, and leaves out what fails; false where the time of the run is up."""
        for attempt in range(3):
            begun, read = time.monotonic(), log.stat().st_size if log.exists() else 0
            passed = run(self.command(name, executable), folder, log, self.left())
            if passed is None:
                return False
            self.seconds[name] = time.monotonic() - begun
            if passed:
                return True
            failed = re.findall(r"^test (\S+) .*FAILED$", log.read_text(errors="replace")[read:], re.MULTILINE)
            print(f"left out, for they fail without a mutant too: {name} {' '.join(failed)} ({log.name})", flush=True)
            self.skipped.setdefault(name, []).extend(failed)
        fail(f"tests of {name} fail without a mutant: {log}")

    def command(self, name, executable):
        return [executable, "--test-threads", "2", *(f"--skip={test}" for test in self.skipped.get(name, []))]

    def verdict(self, mutant, log):
        """What tests say of the copy as it is: an outcome, and who gave it; none where the time of the run is up."""
        tests, late = self.own(mutant["package"], log, min(self.left(), BUILD_SECONDS_MAX))
        if tests is None:
            return None if self.left() < 1 else ("timeout" if late else "unviable", "build")
        known = self.held(tests, log)
        if known != MISSED:
            return known
        # One file after the other: what the first sees needs no build of the next.
        for name in judges(mutant):
            files, late = [self.node_tests[name]], False
            if not is_node(mutant) or name in LINKED:
                files, late = self.files([name], log, min(self.left(), BUILD_SECONDS_MAX))
            if files is None:
                return None if self.left() < 1 else ("timeout" if late else "unviable", "build")
            known = self.held(files, log)
            if known != MISSED:
                return known
        return MISSED

    def held(self, tests, log):
        """The first verdict of these tests; MISSED if all of them pass."""
        for name, executable, folder in tests:
            allowed = max(SECONDS_MIN, TIMES * self.seconds.get(name, 0))
            passed = run(self.command(name, executable), folder, log, min(allowed, self.left()))
            if not passed:
                if passed is None and self.left() < 1:
                    return None
                return "timeout" if passed is None else "caught", name
        return MISSED


def change(mutant):
    """Makes a mutant in the copy; the file's text from before."""
    path = TREE / mutant["file"]
    text = path.read_text()
    lines = text.split("\n")

    def at(place):
        return sum(len(line) + 1 for line in lines[: place["line"] - 1]) + place["column"] - 1

    start, end = at(mutant["span"]["start"]), at(mutant["span"]["end"])
    path.write_text(text[:start] + mutant["replacement"] + text[end:])
    return text


# === the run ===


def in_rounds(mutants):
    """The order of the sample, with mutants of one crate side by side within each round."""
    crates = list(CRATES)
    rounds = [mutants[n : n + ROUND] for n in range(0, len(mutants), ROUND)]
    return [m for part in rounds for m in sorted(part, key=lambda mutant: crates.index(mutant["package"]))]


def go(sample, minutes):
    """Runs what has no outcome yet, as far as the time goes."""
    suite = Suite(time.monotonic() + 60 * minutes, sample["mutants"])
    ready, total = set(), len(sample["mutants"])
    for mutant in in_rounds(sample["mutants"]):
        known = outcomes()
        if mutant["name"] in known:
            continue
        crate, log = mutant["package"], LOGS / f"{hashlib.sha256(mutant['name'].encode()).hexdigest()[:12]}.log"
        if crate not in ready and suite.prepare(crate):
            return
        ready.add(crate)
        begun, before = time.monotonic(), change(mutant)
        try:
            verdict = suite.verdict(mutant, log)
        finally:
            (TREE / mutant["file"]).write_text(before)
        if verdict is None:
            return
        outcome, by = verdict
        seconds = round(time.monotonic() - begun)
        done = {"name": mutant["name"], "outcome": outcome, "by": by, "seconds": seconds, "package": crate}
        with open(OUTCOMES, "a") as to:
            to.write(json.dumps(done) + "\n")
        print(f"[{len(known) + 1}/{total}] {outcome} by {by}, {seconds} s: {mutant['name']} ({log.name})", flush=True)


def tell(sample):
    """The kill ratio, and the survivors."""
    known = outcomes()
    done = [known[mutant["name"]] for mutant in sample["mutants"] if mutant["name"] in known]
    counts = Counter(outcome["outcome"] for outcome in done)
    not_run = len(sample["mutants"]) - len(done)
    print(f"\n{len(sample['mutants'])} of {sample['of']} mutants, MUTANTS_SEED={sample['seed']}")
    for crate, folder in CRATES.items():
        own = Counter(outcome["outcome"] for outcome in done if outcome["package"] == crate)
        if own:
            print(f"  {folder:9} {own['caught']} caught, {own['missed']} missed, {own['unviable']} unviable, {own['timeout']} timed out")
    judged = counts["caught"] + counts["missed"]
    ratio = f"{100 * counts['caught'] / judged:.1f} %" if judged else "none"
    print(f"kill ratio: {ratio} ({counts['caught']} of {judged}); {counts['unviable']} unviable, {counts['timeout']} timed out, {not_run} not run")
    if done:
        print(f"{sum(outcome['seconds'] for outcome in done) / len(done):.0f} s for each mutant, without the first build")
    if not_run:
        print("the same command goes on where this run was")
    survivors = [outcome["name"] for outcome in done if outcome["outcome"] == "missed"]
    if survivors:
        print("survivors:")
    for name in survivors:
        print(f"  {name}")


def main(words):
    count, base = 40, None
    while words:
        word = words.pop(0)
        if word == "--diff" and words:
            base = words.pop(0)
        elif word.isdigit() and int(word) > 0:
            count = int(word)
        else:
            fail("expected [N] [--diff BASE]", 64)
    HOME.mkdir(parents=True, exist_ok=True)
    copy_sources()
    sample = draw(count, base)
    LOGS.mkdir(exist_ok=True)
    print(f"{len(sample['mutants'])} of {sample['of']} mutants, drawn by MUTANTS_SEED={sample['seed']}", flush=True)
    try:
        go(sample, float(os.environ.get("MUTANTS_MINUTES", "60")))
    except KeyboardInterrupt:
        print("stopped")
    tell(sample)


if __name__ == "__main__":
    main(sys.argv[1:])
