"""Read a corpus: a directory of YAML or JSON files, one theme a file."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import yaml

from motor.parity.cases import Case, CorpusError, build_case

BUILT_IN_CORPUS: Final = Path(__file__).parent / "corpus"
_SUFFIXES: Final = frozenset({".yaml", ".yml", ".json"})


def load_corpus(directory: Path = BUILT_IN_CORPUS) -> list[Case]:
    """Return every case below `directory`, in the order of file names and of the cases in them.

    Raises:
        CorpusError: The directory holds no case, a file is no corpus file, or two cases have one name.
    """
    files = sorted(path for path in directory.glob("*") if path.suffix in _SUFFIXES)
    cases = [case for path in files for case in _load_file(path)]
    if not cases:
        raise CorpusError(f"{directory}: no cases found")
    seen: set[str] = set()
    for case in cases:
        if case.name in seen:
            raise CorpusError(f"{case.name}: two cases have this name")
        seen.add(case.name)
    return cases


def select_cases(cases: Sequence[Case], pattern: str | None) -> list[Case]:
    """Return the cases whose name, or one of whose tags, matches the shell pattern; all of them for `None`."""
    if pattern is None:
        return list(cases)
    return [case for case in cases if any(fnmatchcase(word, pattern) for word in (case.name, *case.tags))]


def _load_file(path: Path) -> list[Case]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))  # JSON is YAML too
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise CorpusError(f"{path}: {error}") from error
    if not isinstance(content, Mapping) or not isinstance(content.get("cases"), list):
        raise CorpusError(f"{path}: expected an object with a list of cases")
    defaults, entries = content.get("defaults") or {}, content["cases"]
    if not all(isinstance(part, Mapping) for part in (defaults, *entries)):
        raise CorpusError(f"{path}: the defaults and every case must be objects")
    return [build_case(path.stem, entry, defaults) for entry in entries]
