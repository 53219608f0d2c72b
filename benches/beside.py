"""The figure about Turnway beside other systems: `turnway-bench compare` measures, this puts it on the page."""

import pathlib
import re
import shlex


def compare(bench):
    """Turnway beside NATS, nchan, Sockudo and Socket.IO."""
    into = bench.scratch / "compare"
    args = ["compare", "--into", into, "--installed", bench.peers, *(["--quick"] if bench.quick else []), *shlex.split(bench.more)]
    # With 1 it leaves where a figure of Turnway's is missing, which the table says.
    told = bench.tell(*args, fine=(0, 1))
    bench.commands = [line.replace(str(bench.peers), "target/peers") for line in bench.commands]
    bench.pictures = sorted(pathlib.Path(into).glob("compare-*.svg"))
    # The page has a heading of its own.
    text = re.sub(r"^# .*\n+", "", told).strip()
    pictures = "\n".join(f"![{picture.stem}](compare/{picture.name})" for picture in bench.pictures)
    return [text, pictures]
