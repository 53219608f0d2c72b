"""Neutral Markdown for platforms: cut it into messages, render it, and complete it while it is being written."""

from turnway.text.heal import heal
from turnway.text.render import escape, to_plain
from turnway.text.split import Part, split, split_parts, split_rendered
from turnway.text.units import Unit, length

__all__ = ["Part", "Unit", "escape", "heal", "length", "split", "split_parts", "split_rendered", "to_plain"]
