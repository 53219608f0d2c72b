"""./test mutants [N] [--diff BASE]: changes of the product that no test sees.

cargo-mutants lists every small change (a mutant) of the product's crates: another return value, another operator, an
arm that is gone. N of them are drawn, and held against tests:

- the tests of the changed crate itself: `cargo test -p CRATE`, without those in its documentation;
- then the files of tests/tests that FILES names for the changed source file, and for gateway/ those of NODE_TESTS.

All mutants are built together, in a copy of the sources: a function with mutants gets their bodies beside its own, and
an environment variable selects one (mutants_embed.py). Everything is built once and run once without a mutant. That run
also shows which files of tests call the function of a mutant: only those run against it, the quick ones first. The first
test that fails ends the run of its file, and must fail once more by itself. A constant, and a function that the
compiler refuses with several bodies, is changed and built alone, after all others, and then held against the tests one
file after the other.

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

import mutants_embed

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / "target" / "mutants"
TREE, BUILD, LOGS = HOME / "tree", HOME / "build", HOME / "logs"
REACHED, SCRATCH = HOME / "reached", HOME / "tmp"
CARGO_MUTANTS = ROOT / "target" / "tools" / "bin" / "cargo-mutants"
SAMPLE, JOINT, OUTCOMES = HOME / "sample.json", HOME / "joint.json", HOME / "outcomes.jsonl"
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
    ("gateway/src/cli/adapter_", ["adapter_check"]),
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
# Files of tests/tests that call the gateway's library: they are built anew for a mutant of gateway/ that is built alone.
LINKED = {"bus", "differential", "embedded_store", "metrics", "redis_line", "redis_store", "store_copies", "store_damage"}
# Deliberate bugs, which are no part of the product: no test runs without them.
NOT_PRODUCT = ["gateway/planted/**", "core/src/mutant.rs", "core/src/planted.rs"]
# A test binary may take so many times as long as without a mutant, and at least so many seconds, or fewer if it takes
# less than SECONDS_QUICK.
TIMES, SECONDS_MIN, SECONDS_MIN_QUICK, SECONDS_QUICK = 5, 60, 20, 2
# So often a test binary runs, each time without those of its tests that have failed, but not because of a mutant.
ATTEMPTS = 3
# Most tests of a node wait for it: more of them at a time than there are cores take half as long.
THREADS = 4
PROFILE = "mutants"
# One choice of packages for all builds of mutants, so that dependencies have the same features in each.
PACKAGES = [word for crate in (*CRATES, "turnway-example-node", "turnway-tests") for word in ("-p", crate)]
# Sizes of the long tests, as `./test quick` has them.
SIZES = {
    "SIM_FROM": "1795312778000", "SIM_SECONDS": "20", "TORN_HISTORIES": "100", "DIFFERENTIAL_SEQUENCES": "100",
    "CHAOS_KILLS": "3", "RESUME_DISCONNECTS": "100",
}
MISSED = ("missed", "no test")
KEPT = ("name", "package", "file", "function", "span", "replacement")
NO_CALLER = ("missed", "no test: none calls the function")
# A mutant that is built alone may take so long to build; more, and it has timed out.
BUILD_SECONDS_MAX = 600
FAILED_TEST = re.compile(rb"^test (\S+) .*FAILED$", re.MULTILINE)


class TimeUp(Exception):
    """The time of the run is over."""


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


def copy_sources(changed):
    """Brings the copy up to date, with other texts for some files. A file that is the same is not touched, so that it
    is not built again."""
    paths = tracked()
    for path in paths:
        to = TREE / path
        text = changed[str(path)].encode() if str(path) in changed else (ROOT / path).read_bytes()
        if not to.is_file() or to.read_bytes() != text:
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(text)
            shutil.copymode(ROOT / path, to)
    kept = set(paths)
    for path in [path for path in TREE.rglob("*") if path.is_file()]:
        if path.relative_to(TREE) not in kept:
            path.unlink()


def digest(of):
    """A number for the state of those files that fit."""
    digest = hashlib.sha256()
    for path in filter(of, tracked()):
        digest.update(f"{path}\n".encode() + (ROOT / path).read_bytes())
    return digest.hexdigest()


def is_product(path):
    """Whether a file is of the product's sources, or says what they are built with."""
    return path.name in ("Cargo.toml", "Cargo.lock") or str(path).startswith(tuple(f"{d}/" for d in CRATES.values()))


# === the sample ===


def listed(base):
    """Every mutant there is, or those of what differs from a commit."""
    command = [str(CARGO_MUTANTS), "mutants", "--list", "--json", "--no-config"]
    for crate in CRATES:
        command += ["--package", crate]
    for pattern in NOT_PRODUCT:
        command += ["--exclude", pattern]
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
    wanted = {"digest": digest(is_product), "count": count, "base": base, "kept": list(KEPT), "excluded": NOT_PRODUCT}
    if SAMPLE.is_file():
        sample = json.loads(SAMPLE.read_text())
        same = all(sample.get(key) == value for key, value in wanted.items()) and seed in (None, sample["seed"])
        if same and (seed or len(outcomes()) < len(sample["mutants"])):
            return sample
    seed = seed or str(random.SystemRandom().randrange(1 << 32))
    mutants = listed(base)
    # By hashes: the same in every release of Python, and the first of a larger sample are those of a smaller one.
    order = sorted(mutants, key=lambda mutant: hashlib.sha256(f"{seed} {mutant['name']}".encode()).digest())
    kept = [{key: m[key] for key in KEPT} for m in order[:count]]
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


def environment(more):
    changed = {
        "CARGO_TARGET_DIR": str(BUILD),
        # A build that is stopped can leave state behind with which the next one does not link.
        "CARGO_INCREMENTAL": "0",
        "CARGO_TERM_COLOR": "never",
        "TURNWAY_BIN": str(BUILD / PROFILE / "turnway"),
        "TEST_LOGS": str(LOGS / "nodes"),
        "RUST_BACKTRACE": "0",
        "TURNWAY_PYTHON": str(ROOT / "target" / "venv" / "bin" / "python"),
        "PROMETHEUS_BIN": str(ROOT / "target" / "prometheus" / "usr" / "bin"),
        # Tests that are killed leave their files.
        "TMPDIR": str(SCRATCH),
    }
    return {**SIZES, **os.environ, **changed, **more}


def judges(mutant):
    """The files of tests/tests that a mutant is held against, in order."""
    named = next(files for start, files in FILES if mutant["file"].startswith(start))
    return named + [name for name in NODE_TESTS if is_node(mutant) and name not in named]


def is_node(mutant):
    """Whether most files of tests/tests can stay as they are, and only the node is built anew."""
    return mutant["package"] == "turnway"


def as_judge(artifact):
    """The test binary that cargo has built: the crate whose own it is, or none, and its name; none for other things."""
    if not artifact.get("executable") or not artifact.get("profile", {}).get("test"):
        return None
    folder, name = Path(artifact["manifest_path"]).parent, artifact["target"]["name"]
    crate = next((crate for crate, path in CRATES.items() if TREE / path == folder), None)
    kind = artifact["target"]["kind"][0]
    if not crate and (folder != TREE / "tests" or kind != "test"):
        return None
    label = f"{crate} --{kind if kind in ('bin', 'test') else 'lib'} {name}" if crate else name
    return {"label": label, "crate": crate, "executable": artifact["executable"], "folder": str(folder), "skipped": []}


class Runner:
    """Runs builds and tests until the time is up."""

    def __init__(self, end):
        self.end = end

    def left(self):
        return self.end - time.monotonic()

    def run(self, command, cwd, log, seconds=None, more={}, to=None, to_end=True):
        """Whether a command went well; none where it took too long. What it started ends with it. A test binary that
        is not to run to its end is over with its first failed test."""
        until = min(self.end, time.monotonic() + seconds) if seconds else self.end
        with open(log, "ab") as out, open(to or os.devnull, "wb") as data:
            read = out.tell()
            process = subprocess.Popen(
                command, cwd=cwd, env=environment(more), stdin=subprocess.DEVNULL, stdout=data if to else out, stderr=out,
                start_new_session=True,
            )
            try:
                while process.poll() is None and time.monotonic() < until:
                    if not to_end and failed_tests(log, read):
                        return False
                    time.sleep(0.1)
                if process.poll() is None and self.left() < 1:
                    raise TimeUp
                return None if process.returncode is None else process.returncode == 0
            finally:
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                process.wait()

    def cargo(self, words, log, seconds=None, more={}):
        """Whether cargo went well, and what it told: errors and artifacts."""
        out = HOME / "built.jsonl"
        command = ["cargo", words[0], "--locked", "--profile", PROFILE, "--message-format", "json", *words[1:]]
        built = self.run(command, TREE, log, seconds, more, to=out)
        lines = out.read_text().splitlines() if built is not None else []
        told = [json.loads(line) for line in lines if line.startswith("{")]
        errors = [one for one in told if one.get("reason") == "compiler-message" and one["message"]["level"] == "error"]
        with open(log, "a") as to:
            to.writelines(error["message"]["rendered"] for error in errors)
        return built, errors, [one for one in told if one.get("reason") == "compiler-artifact"]

    def tests(self, words, log, seconds=None):
        """Builds tests; the test binaries, or none, and whether time was up."""
        built, _, artifacts = self.cargo(["test", "--no-run", *words], log, seconds)
        return [judge for judge in map(as_judge, artifacts) if judge] if built else None, built is None

    def node(self, log, seconds=None):
        """Builds the node, alone and with the example's plugins; none where it took too long."""
        return self.cargo(["build", *PACKAGES, "--bins"], log, seconds)[0]

    def judge(self, judge, log, seconds=None, more={}, to_end=False):
        shutil.rmtree(SCRATCH, ignore_errors=True)
        SCRATCH.mkdir()
        command = [judge["executable"], "--test-threads", str(THREADS), "--exact"]
        command += [judge["only"]] if "only" in judge else [f"--skip={test}" for test in judge["skipped"]]
        return self.run(command, judge["folder"], log, seconds, more, to_end=to_end)

    def held(self, tests, log, more={}):
        """The first verdict of these test binaries; MISSED if all of them pass."""
        for judge in tests:
            found = self.held_by(judge, log, more)
            if found:
                return found
        return MISSED

    def held_by(self, judge, log, more):
        """The verdict of a test binary, or none if it passes. A failed test must fail once more by itself, which also
        writes its message to the log: where it passes then, it has failed by chance, and is left out."""
        least = SECONDS_MIN if judge["seconds"] >= SECONDS_QUICK else SECONDS_MIN_QUICK
        allowed, skipped = max(least, TIMES * judge["seconds"]), [*judge["skipped"]]
        for _ in range(ATTEMPTS):
            read = log.stat().st_size if log.exists() else 0
            passed = self.judge({**judge, "skipped": skipped}, log, allowed, more)
            if passed:
                return None
            failed = failed_tests(log, read)[:1]
            if passed is None or not failed:
                return "timeout" if passed is None else "caught", judge["label"]
            if not self.judge({**judge, "only": failed[0]}, log, allowed, more, to_end=True):
                return "caught", f"{judge['label']} {failed[0]}"
            skipped += failed
        return None


def failed_tests(log, read):
    """The tests that have failed since the log had so many bytes."""
    with open(log, "rb") as text:
        text.seek(read)
        return [name.decode() for name in FAILED_TEST.findall(text.read())]


# === mutants that are built together ===


class Joint:
    """One build with all mutants of the sample that the compiler takes, kept in joint.json step by step."""

    def __init__(self, runner, mutants):
        self.runner, self.mutants = runner, dict(enumerate(mutants, 1))
        key = f"{digest(lambda path: path.suffix != '.md')} {[mutant['name'] for mutant in mutants]}"
        self.known = json.loads(JOINT.read_text()) if JOINT.is_file() else {}
        if self.known.get("key") != key:
            self.known = {"key": key, "seconds": {}}
        self.log = LOGS / "joint.log"

    def keep(self, **known):
        self.known.update(known)
        JOINT.write_text(json.dumps(self.known, indent=1))

    def timed(self, part, begun):
        self.known["seconds"][part] = self.known["seconds"].get(part, 0) + time.monotonic() - begun

    def text(self, name):
        return (ROOT / name).read_text()

    def numbered(self, numbers):
        """Mutants with their numbers, by file."""
        files = {}
        for number in numbers:
            files.setdefault(self.mutants[number]["file"], []).append((number, self.mutants[number]))
        return files

    def embed(self, numbers):
        """Writes the copy with these mutants beside the functions' own bodies; the regions of each file, and the
        number by which each mutant's function is known."""
        embedded = {name: mutants_embed.Embedded(self.text(name), own) for name, own in self.numbered(numbers).items()}
        copy_sources({name: one.text for name, one in embedded.items()})
        group = {str(number): first for one in embedded.values() for number, first in one.group.items()}
        return {name: one.regions for name, one in embedded.items()}, group

    def replace(self, numbers):
        """Writes the copy with these mutants in place of what they change; the regions of each file."""
        files = self.numbered(numbers)
        changed = {name: mutants_embed.replaced_all(self.text(name), own) for name, own in files.items()}
        copy_sources({name: text for name, (text, _) in changed.items()})
        return {name: regions for name, (_, regions) in changed.items()}

    def check(self, regions):
        """Whether the copy compiles, and the mutants that errors are about."""
        words, more = ["check", "--keep-going", *PACKAGES, "--lib", "--bins"], {"CARGO_INCREMENTAL": "1"}
        passed, errors, _ = self.runner.cargo(words, self.log, more=more)
        return passed, {number for error in errors for number in mutants_embed.blamed(error["message"], regions)}

    def sort(self):
        """Finds out which mutants one build can hold, which need a build of their own, and which do not compile."""
        begun = time.monotonic()
        fit = [n for n, one in self.mutants.items() if mutants_embed.is_embeddable(self.text(one["file"]), one)]
        alone, refused = [number for number in self.mutants if number not in fit], []
        while True:
            regions, group = self.embed(fit)
            passed, blamed = self.check(regions)
            if passed:
                break
            if not fit:
                fail(f"the product does not build: {self.log}")
            # An error that says nothing of a mutant leaves no other way than to build all of them alone.
            blamed = blamed or set(fit)
            refused += sorted(blamed)
            fit = [number for number in fit if number not in blamed]
        unviable = self.unviable(refused)
        alone = sorted([*alone, *(number for number in refused if number not in unviable)])
        self.timed("check", begun)
        self.keep(embedded=fit, alone=alone, unviable=sorted(unviable), group=group)

    def unviable(self, refused):
        """Those of the refused mutants that do not compile in place of what they change either."""
        unviable, left = set(), list(refused)
        while left:
            batch = []
            for number in left:
                if mutants_embed.is_apart(self.mutants[number], [self.mutants[other] for other in batch]):
                    batch.append(number)
            left = [number for number in left if number not in batch]
            while batch:
                passed, blamed = self.check(self.replace(batch))
                if passed or not blamed:
                    break
                unviable |= blamed
                batch = [number for number in batch if number not in blamed]
        return unviable

    def build(self):
        """Builds the node and all tests that judge the sample."""
        begun = time.monotonic()
        crates = {mutant["package"] for mutant in self.mutants.values()}
        files = {name for mutant in self.mutants.values() for name in judges(mutant)}
        own = {path.parent.name if path.name == "main.rs" else path.stem for crate in crates for path in own_tests(crate)}
        try:
            while not (tests := self.built(sorted(files | own))):
                pass
        finally:
            self.timed("build", begun)
            self.keep()
        self.keep(judges=[one for one in tests if one["crate"] in crates or not one["crate"] and one["label"] in files])

    def built(self, names):
        """The test binaries. None where the compiler refuses a mutant only now: it is to be built alone."""
        regions, _ = self.embed(self.known["embedded"])
        named = [word for name in names for word in ("--test", name)]
        built, errors, artifacts = self.runner.cargo(["build", *PACKAGES, "--bins"], self.log)
        if built:
            words = ["test", "--no-run", *PACKAGES, "--lib", "--bins", *named]
            built, errors, artifacts = self.runner.cargo(words, self.log)
        if built:
            return [judge for judge in map(as_judge, artifacts) if judge]
        blamed = {number for error in errors for number in mutants_embed.blamed(error["message"], regions)}
        if not blamed:
            fail(f"the mutants do not build together: {self.log}")
        left = [number for number in self.known["embedded"] if number not in blamed]
        self.keep(embedded=left, alone=sorted({*self.known["alone"], *blamed}))
        return None

    def measure(self, judge):
        """Runs a test binary without a mutant: how long it takes, which functions it calls, and which tests fail."""
        begun = time.monotonic()
        for _ in range(ATTEMPTS):
            shutil.rmtree(REACHED, ignore_errors=True)
            REACHED.mkdir()
            start, read = time.monotonic(), self.log.stat().st_size
            passed = self.runner.judge(judge, self.log, None, {mutants_embed.REACHED: str(REACHED)}, to_end=True)
            if passed:
                judge["reached"] = sorted(int(path.name) for path in REACHED.iterdir())
                judge["seconds"] = time.monotonic() - start
                self.timed("tests", begun)
                self.keep()
                return
            failed = failed_tests(self.log, read)
            print(f"left out, for they fail without a mutant too: {judge['label']} {' '.join(failed)}", flush=True)
            judge["skipped"] += failed
        fail(f"tests of {judge['label']} fail without a mutant: {self.log}")

    def prepare(self):
        """Does what is not done yet."""
        if "embedded" not in self.known:
            self.sort()
        if "judges" not in self.known:
            self.build()
        for judge in self.known["judges"]:
            if "reached" not in judge:
                self.measure(judge)
        counts = ", ".join(f"{len(self.known[part])} {part}" for part in ("embedded", "alone", "unviable"))
        took = ", ".join(f"{part} {seconds:.0f} s" for part, seconds in self.known["seconds"].items())
        print(f"mutants together: {counts}; {took}", flush=True)

    def verdict(self, number, log):
        """What tests say of a mutant: an outcome, and who gave it."""
        mutant = self.mutants[number]
        own = [one for one in self.known["judges"] if one["crate"] == mutant["package"]]
        tests = own + [one for one in self.known["judges"] if one["label"] in judges(mutant)]
        called = [one for one in tests if self.known["group"][str(number)] in one["reached"]]
        if not called:
            return NO_CALLER
        called.sort(key=lambda judge: judge["seconds"])
        return self.runner.held(called, log, {mutants_embed.SELECTED: str(number)})


def own_tests(crate):
    """The files in the folder `tests` of a crate."""
    folder = ROOT / CRATES[crate] / "tests"
    return [*folder.glob("*.rs"), *folder.glob("*/main.rs")]


# === mutants that are built alone ===


class Alone:
    """Builds one mutant in place of what it changes, and what of the tests it is linked with."""

    def __init__(self, runner, known):
        self.runner, self.known = runner, {judge["label"]: judge for judge in known}
        copy_sources({})

    def measured(self, built):
        """Test binaries just built, with what is known of them from the run without a mutant."""
        return [{**self.known[one["label"]], **one, "skipped": self.known[one["label"]]["skipped"]} for one in built]

    def own(self, crate, log, seconds):
        """Builds a crate's own tests within so many seconds."""
        words = [*PACKAGES, "--lib", "--bins"] if crate == "turnway" else ["-p", crate, "--lib", "--tests"]
        found, late = self.runner.tests(words, log, seconds)
        return found and self.measured(one for one in found if one["crate"] == crate), late

    def file(self, mutant, name, log, seconds):
        """Builds a file of tests/tests within so many seconds, where it is linked with what has changed."""
        if is_node(mutant) and name not in LINKED:
            return [self.known[name]], False
        found, late = self.runner.tests([*PACKAGES, "--test", name], log, seconds)
        return found and self.measured(one for one in found if one["label"] == name), late

    def verdict(self, mutant, log):
        """What tests say of a mutant: an outcome, and who gave it."""
        path = TREE / mutant["file"]
        before = path.read_text()
        path.write_text(mutants_embed.replaced(before, mutant))
        try:
            return self.held(mutant, log)
        finally:
            path.write_text(before)

    def held(self, mutant, log):
        end = time.monotonic() + BUILD_SECONDS_MAX
        tests, late = self.own(mutant["package"], log, BUILD_SECONDS_MAX)
        if tests is None:
            return "timeout" if late else "unviable", "build"
        known = self.runner.held(tests, log)
        if known != MISSED:
            return known
        built = self.runner.node(log, max(1, end - time.monotonic()))
        if not built:
            return "timeout" if built is None else "unviable", "build"
        # One file after the other: what the first sees needs no build of the next.
        for name in judges(mutant):
            tests, late = self.file(mutant, name, log, BUILD_SECONDS_MAX)
            if tests is None:
                return "timeout" if late else "unviable", "build"
            known = self.runner.held(tests, log)
            if known != MISSED:
                return known
        return MISSED


# === the run ===


def record(sample, mutant, verdict, seconds, is_alone):
    """Keeps a mutant's outcome, and prints it."""
    outcome, by = verdict
    log = log_of(mutant) if log_of(mutant).exists() else LOGS / "joint.log"
    done = {"name": mutant["name"], "outcome": outcome, "by": by, "seconds": seconds}
    with open(OUTCOMES, "a") as to:
        to.write(json.dumps({**done, "package": mutant["package"], "alone": is_alone}) + "\n")
    how = " (built alone)" if is_alone else ""
    count = f"{len(outcomes())}/{len(sample['mutants'])}"
    print(f"[{count}] {outcome} by {by}, {seconds:.0f} s{how}: {mutant['name']} ({log.name})", flush=True)


def log_of(mutant):
    return LOGS / f"{hashlib.sha256(mutant['name'].encode()).hexdigest()[:12]}.log"


def go(sample, minutes):
    """Runs what has no outcome yet, as far as the time goes."""
    left = [mutant["name"] for mutant in sample["mutants"] if mutant["name"] not in outcomes()]
    if not left:
        return
    runner = Runner(time.monotonic() + 60 * minutes)
    joint = Joint(runner, sample["mutants"])
    joint.prepare()
    parts = ("unviable", "embedded", "alone")
    todo = {part: [number for number in joint.known[part] if joint.mutants[number]["name"] in left] for part in parts}
    for number in todo["unviable"]:
        record(sample, joint.mutants[number], ("unviable", "build"), 0, False)
    for number in todo["embedded"]:
        begun, mutant = time.monotonic(), joint.mutants[number]
        record(sample, mutant, joint.verdict(number, log_of(mutant)), time.monotonic() - begun, False)
    if not todo["alone"]:
        return
    alone = Alone(runner, joint.known["judges"])
    for number in todo["alone"]:
        begun, mutant = time.monotonic(), joint.mutants[number]
        record(sample, mutant, alone.verdict(mutant, log_of(mutant)), time.monotonic() - begun, True)


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
    tell_times(done)
    if not_run:
        print("the same command goes on where this run was")
    survivors = [outcome for outcome in done if outcome["outcome"] == "missed"]
    if survivors:
        print("survivors:")
    for outcome in survivors:
        print(f"  {outcome['name']}{' (no test calls the function)' if outcome['by'] == NO_CALLER[1] else ''}")


def tell_times(done):
    """How long the parts of the run took."""
    joint = json.loads(JOINT.read_text()) if JOINT.is_file() else {}
    took = ", ".join(f"{part} {seconds:.0f} s" for part, seconds in joint.get("seconds", {}).items())
    if took:
        print(f"mutants together: {took}")
    for name, is_alone in (("together", False), ("alone", True)):
        own = [outcome["seconds"] for outcome in done if outcome["alone"] == is_alone and outcome["by"] != "build"]
        if own:
            print(f"{len(own)} mutants built {name}: {sum(own) / len(own):.0f} s for each")


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
    sample = draw(count, base)
    LOGS.mkdir(exist_ok=True)
    print(f"{len(sample['mutants'])} of {sample['of']} mutants, drawn by MUTANTS_SEED={sample['seed']}", flush=True)
    try:
        go(sample, float(os.environ.get("MUTANTS_MINUTES", "60")))
    except TimeUp:
        print("the time is up")
    except KeyboardInterrupt:
        print("stopped")
    tell(sample)


if __name__ == "__main__":
    main(sys.argv[1:])
