"""Capabilities of an adapter: levels and limits, checked before the gateway sees them. Used by adapter.py."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from turnway.types import FromAdapterHelloCapabilitiesValue

Unit: TypeAlias = Literal["chars", "utf16", "bytes"]

# The gateway takes this many capabilities.
CAPABILITIES_MAX = 64
# The gateway counts a smaller limit as this one.
TEXT_LIMIT_MIN = 64
LIMIT_MAX = 2**32 - 1


@dataclass(frozen=True)
class Limit:
    """A capability with a limit, such as the length of one message in `unit`."""

    max: int
    unit: Unit = "utf16"
    level: int = 2

    def __post_init__(self) -> None:
        if not 1 <= self.max <= LIMIT_MAX:
            raise ValueError(f"a limit of {self.max} {self.unit}: it must be from 1 to {LIMIT_MAX}")
        if self.unit not in ("chars", "utf16", "bytes"):
            raise ValueError(f"the unit {self.unit!r} is not one of chars, utf16, bytes")


class Capabilities:
    """The capabilities of an account or of one conversation, by name.

    A level is -2 rejected, -1 dropped, 0 fallback, 1 partial, 2 full. The gateway asks only for what has a level
    above 0.
    """

    def __init__(self, **levels: int | Limit) -> None:
        if len(levels) > CAPABILITIES_MAX:
            raise ValueError(f"{len(levels)} capabilities: at most {CAPABILITIES_MAX}")
        for name, value in levels.items():
            level = value.level if isinstance(value, Limit) else value
            if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name):
                raise ValueError(f"{name!r} is no name of a capability")
            if isinstance(level, bool) or level not in (-2, -1, 0, 1, 2):
                raise ValueError(f"the capability {name} has the level {level!r}: it must be from -2 to 2")
        text = levels.get("text")
        if isinstance(text, Limit) and text.max < TEXT_LIMIT_MIN:
            raise ValueError(f"the capability text has the limit {text.max}: it must be at least {TEXT_LIMIT_MIN}")
        self._levels: Mapping[str, int | Limit] = dict(levels)

    def level(self, name: str) -> int:
        """Returns the level of a capability; 0 for one that is not declared."""
        value = self._levels.get(name, 0)
        return value.level if isinstance(value, Limit) else value

    def as_message(self) -> dict[str, FromAdapterHelloCapabilitiesValue | int]:
        """Returns the capabilities as `hello` and `capabilities` have them."""
        found: dict[str, FromAdapterHelloCapabilitiesValue | int] = {}
        for name, value in self._levels.items():
            if isinstance(value, Limit):
                found[name] = {"level": value.level, "max": value.max, "unit": value.unit}
            else:
                found[name] = value
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._levels)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Capabilities) and self._levels == other._levels

    def __hash__(self) -> int:
        return hash(tuple(sorted(self._levels)))

    def __repr__(self) -> str:
        return f"Capabilities({', '.join(f'{name}={value!r}' for name, value in self._levels.items())})"
