"""The documentation names every key, with its default, and no key that isn't there."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Any

import pytest
import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from motor.coordinator.config import Settings
from motor.coordinator.config_file import load_settings

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| `([a-z_.\[\]]+)` \| [^|]+ \| ([^|]+) \|", PAGE, re.MULTILINE))


def leaves(section: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield every key that holds a value, with its path; `[]` marks a list of sections."""
    for name, field in section.model_fields.items():
        annotation: Any = field.annotation
        inner = [one for one in getattr(annotation, "__args__", ()) if isinstance(one, type)]
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from leaves(annotation, f"{prefix}{name}.")
        elif inner and issubclass(inner[0], BaseModel):
            yield f"{prefix}{name}", field
            mark = "" if isinstance(annotation, UnionType) else "[]"
            yield from leaves(inner[0], f"{prefix}{name}{mark}.")
        else:
            yield f"{prefix}{name}", field


@pytest.mark.parametrize(("key", "field"), [pytest.param(*leaf, id=leaf[0]) for leaf in leaves(Settings)])
def test_every_key_is_documented_with_its_default(key: str, field: FieldInfo) -> None:
    assert key in ROWS
    if field.is_required():
        assert ROWS[key] == "required"
    elif isinstance(field.default, str | int | float | bool):
        assert ROWS[key] == f"`{json.dumps(field.default)}`"


def test_no_documented_key_is_unknown() -> None:
    assert set(ROWS) == {key for key, _ in leaves(Settings)}


@pytest.mark.parametrize("page", ["README.md", "docs/configuration.md"])
def test_the_examples_load(page: str, tmp_path: Path) -> None:
    examples = re.findall(r"```yaml\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    assert examples
    for number, example in enumerate(examples):
        path = tmp_path / f"{number}.yaml"
        path.write_text(example, encoding="utf-8")
        assert yaml.safe_load(example)["model"]
        load_settings(path, {})
