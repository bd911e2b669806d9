"""Versions of vLLM, as `GET /version` tells them."""

import re
from typing import NamedTuple

_NUMBERS = re.compile(r"^v?(\d+)\.(\d+)(?:\.(\d+))?")


class Version(NamedTuple):
    """A release; suffixes such as `+cpu` and `rc1` don't count."""

    major: int
    minor: int
    patch: int = 0

    @classmethod
    def parse(cls, text: str) -> "Version | None":
        """Return the version that a text begins with, if it does."""
        match = _NUMBERS.match(text)
        return None if match is None else cls(int(match[1]), int(match[2]), int(match[3] or 0))

    def __str__(self) -> str:
        """Return `major.minor.patch`."""
        return f"{self.major}.{self.minor}.{self.patch}"
