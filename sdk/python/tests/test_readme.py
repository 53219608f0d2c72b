"""Every code block of README.md runs, in a folder of its own, in the order of the page, against a real node."""

import asyncio
import os
import re
import sys
from pathlib import Path

import pytest
from processes import ROOT, Node, started, wait_until

README = ROOT / "sdk" / "python" / "README.md"
NODE_URL = "ws://127.0.0.1:8080"
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
RUN_SECONDS = 50.0


async def run(directory: Path, *command: str, stop: asyncio.Event | None = None) -> str:
    """Runs a command in a folder; returns what it has printed. `stop` ends it by SIGTERM."""
    # What pip builds with is installed; nothing is fetched.
    pip = {"PIP_NO_BUILD_ISOLATION": "0", "PIP_NO_DEPS": "1", "PIP_TARGET": str(directory / "installed")}
    environment = {**os.environ, **pip, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONPATH": str(directory)}
    process = await asyncio.create_subprocess_exec(
        *command, cwd=directory, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        async with asyncio.timeout(RUN_SECONDS):
            if stop is not None:
                await stop.wait()
                process.terminate()
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, output.decode()
    return output.decode()


def python_blocks(url: str) -> list[str]:
    return [code.replace(NODE_URL, url) for language, code in BLOCKS if language == "python"]


def shell_lines() -> list[str]:
    lines = [line for language, code in BLOCKS if language == "sh" for line in code.splitlines()]
    return [line.split("  #")[0].strip() for line in lines]


def test_every_block_is_known() -> None:
    assert [language for language, _ in BLOCKS] == ["sh", "python", "sh"] + ["python"] * 5
    assert shell_lines() == [
        "python3 -m pip install ./sdk/python",
        "cargo run --release -- serve --demo",
        "echo hello > inbox.txt",
        "python3 folder.py",
    ]


@pytest.mark.slow
async def test_blocks_run_in_order(tmp_path: Path) -> None:
    install, _, write, adapt = shell_lines()
    node = Node(tmp_path / "data", "--demo")
    async with started(node):
        folder, client, *others = python_blocks(node.url)
        (tmp_path / "folder.py").write_text(folder)
        await run(tmp_path, "sh", "-c", write)
        stop = asyncio.Event()
        command = [sys.executable, *adapt.split()[1:]]
        adapter = asyncio.create_task(run(tmp_path, *command, stop=stop))
        outbox = tmp_path / "outbox.txt"
        await wait_until(lambda: outbox.exists() and outbox.read_text() == "hello\n", name="the answer")
        stop.set()
        await adapter
        assert (tmp_path / "folder.offset").read_text() == "1\n"
        assert await run(tmp_path, sys.executable, "-c", client) == "hello, is anybody there?\n"
        outbox.unlink()
        for block in others:
            await run(tmp_path, sys.executable, "-c", block)
    # The command runs at the top of the repository.
    (tmp_path / "sdk").symlink_to(ROOT / "sdk")
    await run(tmp_path, *[sys.executable, *install.split()[1:]])
    assert (tmp_path / "installed" / "turnway" / "py.typed").exists()
