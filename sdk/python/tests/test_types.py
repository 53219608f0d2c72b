"""The generated types: up to date with the schema, and complete."""

import json
import subprocess
import sys
import typing

import turnway.types
from processes import ROOT


def test_types_are_up_to_date() -> None:
    """If this fails, run `python sdk/python/generate_types.py`."""
    script = ROOT / "sdk" / "python" / "generate_types.py"
    found = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


def test_every_message_has_a_type() -> None:
    definitions = json.loads((ROOT / "docs" / "turnway.v1.schema.json").read_text())["$defs"]
    objects = [name for name, schema in definitions.items() if "properties" in schema]
    assert len(objects) > 150
    for name in objects:
        words = name.replace(".", " ").replace("_", " ").split()
        python_name = "".join(word.capitalize() if word.isupper() or word.islower() else word for word in words)
        hints = typing.get_type_hints(getattr(turnway.types, python_name))
        assert set(hints) == set(definitions[name]["properties"]), name
