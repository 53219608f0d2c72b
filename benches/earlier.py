"""Builds the node of an earlier commit, for `figures.py check --against REV`. Does not touch this checkout's files."""

import pathlib
import shutil
import subprocess

from ground import end, say, start
from machine import ROOT, git

# One folder for each commit with its `turnway`; `build` is cargo's target directory, which all of them share.
KEPT = ROOT / "target" / "against"
# What docs/benchmarks.md tells to build, so that features of dependencies are the same.
BUILD = ["cargo", "build", "--locked", "--profile", "dist", "--workspace", "--bins"]


def resolve(revision):
    """Returns the full name of a commit; None if this repository has no such commit."""
    code, name = git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    return name if code == 0 else None


def build_earlier(commit, environment):
    """Returns a directory with the `turnway` of this commit, which is built unless it is there from an earlier call."""
    into = KEPT / commit
    if (into / "turnway").exists():
        return into
    source = into / "source"
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir(parents=True)
    say(f"building {commit[:12]} in {source}; this takes as long as a first build")
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True)
    # With -m each file is of now: cargo would take older files for those that the shared target directory was built from.
    subprocess.run(["tar", "-xm", "-C", source], input=archive.stdout, check=True)
    target = KEPT / "build"
    process = start(BUILD, cwd=source, env={**environment, "CARGO_TARGET_DIR": str(target)})
    try:
        code = process.wait()
    finally:
        end(process)
    if code != 0:
        raise RuntimeError(f"`{' '.join(BUILD)}` of {commit[:12]} left with {code}; its source is in {source}")
    shutil.copy(pathlib.Path(target) / "dist" / "turnway", into / "turnway")
    shutil.rmtree(source)
    return into
