"""Writes src/turnway/types.py from docs/turnway.v1.schema.json.

    python generate_types.py            writes the file
    python generate_types.py --check    exit code 1 if the file is stale

The wire schema is the only source: the written file must not be edited by hand.
"""

import json
import keyword
import sys
import textwrap
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SCHEMA = HERE.parent.parent / "docs" / "turnway.v1.schema.json"
TARGET = HERE / "src" / "turnway" / "types.py"
COMMAND = "python sdk/python/generate_types.py"
WIDTH = 120

HEADER = f'''"""Types of all messages of `turnway.v1`, for type checkers: at run time each message is a plain dict.

Written from docs/turnway.v1.schema.json by `{COMMAND}`. Do not edit.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypeAlias, TypedDict

# A value that the protocol passes on unchanged.
Json: TypeAlias = Any
'''

Schema = dict[str, Any]


def class_name(name: str) -> str:
    """Returns the Python name of a definition, such as `ToAdapterDeliver` for `to_adapter.deliver`."""
    words = name.replace(".", " ").replace("_", " ").split()
    return "".join(word.capitalize() if word.isupper() or word.islower() else word for word in words)


def comment(text: str, indent: str) -> list[str]:
    """Returns a description as comment lines."""
    return textwrap.wrap(text, WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")


def field(key: str, expression: str) -> list[str]:
    """Returns a field as lines. A long expression breaks within its brackets."""
    line = f"{key}: {expression}"
    return textwrap.wrap(line, WIDTH, initial_indent="    ", subsequent_indent=" " * 8, break_on_hyphens=False)


class Writer:
    """The definitions that were written so far, sorted into names that others need at run time and the rest."""

    def __init__(self, schema: Schema) -> None:
        self.definitions: dict[str, Schema] = schema["$defs"]
        self.names = {class_name(name) for name in self.definitions}
        self.aliases: list[str] = []
        self.classes: list[str] = []
        self.unions: list[str] = []

    def write(self) -> str:
        """Returns the whole file."""
        for name, schema in self.definitions.items():
            self.define(name, schema)
        blocks = ["\n".join(self.aliases), *self.classes, "\n\n".join(self.unions)]
        return HEADER + "\n" + "\n\n\n".join(blocks) + "\n"

    def define(self, name: str, schema: Schema) -> None:
        """Adds one definition of the schema."""
        python_name = class_name(name)
        if "properties" in schema:
            self.add_class(python_name, schema)
            return
        references = [option.get("$ref") for option in schema.get("anyOf", [])]
        if references and all(references):
            members = " | ".join(self.expression(option, python_name) for option in schema["anyOf"])
            lines = textwrap.wrap(members, WIDTH - 4, initial_indent="    ", subsequent_indent="    ")
            self.unions.append("\n".join([f"{python_name}: TypeAlias = (", *lines, ")"]))
            return
        if "description" in schema:
            self.aliases.extend(comment(schema["description"], ""))
        classes = len(self.classes)
        expression = self.expression(schema, python_name)
        if len(self.classes) > classes:
            expression = f'"{expression}"'  # its classes stand further below
        line = f"{python_name}: TypeAlias = {expression}"
        if len(line) > WIDTH:
            words = textwrap.wrap(expression.removeprefix("Literal[").removesuffix("]"), WIDTH - 4)
            line = "\n".join([f"{python_name}: TypeAlias = Literal[", *(f"    {word}" for word in words), "]"])
        self.aliases.append(line)

    def add_class(self, python_name: str, schema: Schema) -> None:
        """Adds a TypedDict; its nested objects come first, under the name of their field."""
        required = set(schema.get("required", []))
        fields: list[tuple[str, str, Schema]] = []
        for key, value in schema["properties"].items():
            expression = self.expression(value, python_name + class_name(key))
            fields.append((key, expression if key in required else f"NotRequired[{expression}]", value))
        description = schema.get("description", f"The object `{python_name}`.")
        if all(key.isidentifier() and not keyword.iskeyword(key) for key, _, _ in fields):
            lines = [f"class {python_name}(TypedDict):"]
            lines += textwrap.wrap(f'"""{description}"""', WIDTH - 4, initial_indent="    ", subsequent_indent="    ")
            lines.append("")
            for key, expression, value in fields:
                lines += comment(value["description"], "    ") if "description" in value else []
                lines += field(key, expression)
        else:
            # A key such as `from` is no identifier, so the class form cannot have it.
            lines = [*comment(description, ""), f'{python_name} = TypedDict("{python_name}", {{']
            for key, expression, value in fields:
                lines += comment(value["description"], "    ") if "description" in value else []
                quoted = expression.replace('"', "'")
                lines.append(f'    "{key}": "{quoted}",')
            lines.append("})")
        self.classes.append("\n".join(lines))

    def expression(self, schema: Schema, name_for_object: str) -> str:
        """Returns the type expression of a schema. An object becomes a TypedDict with the given name."""
        if "$ref" in schema:
            return class_name(schema["$ref"].removeprefix("#/$defs/"))
        if "const" in schema:
            return f"Literal[{json.dumps(schema['const'])}]"
        if "enum" in schema:
            return f"Literal[{', '.join(json.dumps(value) for value in schema['enum'])}]"
        if "anyOf" in schema:
            return self.union(schema["anyOf"], name_for_object)
        if "properties" in schema:
            if name_for_object in self.names:
                name_for_object += "Field"  # a definition of the schema has the name
            self.names.add(name_for_object)
            self.add_class(name_for_object, schema)
            return name_for_object
        match schema.get("type"):
            case "string":
                return "str"
            case "integer":
                return "int"
            case "number":
                return "float"
            case "boolean":
                return "bool"
            case "null":
                return "None"
            case "array":
                return f"list[{self.expression(schema.get('items', {}), name_for_object + 'Item')}]"
            case "object":
                values = schema.get("additionalProperties", {})
                values = values if isinstance(values, dict) else {}
                return f"dict[str, {self.expression(values, name_for_object + 'Value')}]"
            case None:
                return "Json"
            case other:
                raise ValueError(f"{name_for_object}: the type {other!r} is not known to this script")

    def union(self, options: list[Schema], name: str) -> str:
        """Returns `A | B`; several objects in one union get numbers."""
        parts: list[str] = []
        objects = [option for option in options if "properties" in option]
        for option in options:
            number = str(objects.index(option) + 1) if option in objects and len(objects) > 1 else ""
            part = self.expression(option, name + number)
            if part not in parts:
                parts.append(part)
        return " | ".join(parts)


def generate() -> str:
    """Returns the text that src/turnway/types.py must have."""
    return Writer(json.loads(SCHEMA.read_text(encoding="utf-8"))).write()


def main(arguments: list[str]) -> int:
    """Writes the file, or compares it, and returns the exit code."""
    if arguments not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 64
    text = generate()
    if not arguments:
        TARGET.write_text(text, encoding="utf-8")
        return 0
    if TARGET.exists() and TARGET.read_text(encoding="utf-8") == text:
        return 0
    print(f"{TARGET.name} is stale: run `{COMMAND}`", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
