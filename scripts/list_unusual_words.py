"""List words in names and configuration keys that neither the field's libraries nor the glossary have.

    python scripts/list_unusual_words.py [--least 3]

Names are split at underscores and capitals. A word is usual if at least three source files of the standard library,
torch, transformers (where installed), numpy, datasets, hydra or huggingface_hub use it in a name, or if the glossary of
.github/CONTRIBUTING.md or scripts/accepted_words.txt has it. The list shows every other word, the number of our files
that use it, and one of them.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import sysconfig
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from steps import run_script

ROOT = Path(__file__).parents[1]
PEERS = (
    "torch",
    "transformers",
    "numpy",
    "datasets",
    "hydra",
    "omegaconf",
    "huggingface_hub",
    "tokenizers",
    "matplotlib",
    "sklearn",
    "scipy",
    "rich",
    "pytest",
    "tensorboard",
    "filelock",
)
_NAME = re.compile(r"\b[A-Za-z_][A-Za-z0-9_]*\b")
_CODE = re.compile(r'"""(?:.|\n)*?"""|\'\'\'(?:.|\n)*?\'\'\'|#[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'')
_PART = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+")


def words_of(text: str) -> set[str]:
    """The lower-case words in the names of a source text; strings and comments do not count."""
    return {
        part.lower() for name in _NAME.findall(_CODE.sub(" ", text)) for part in _PART.findall(name) if len(part) > 3
    }


def usual_words(least: int) -> set[str]:
    """Words that so many files of others use in names, those of the glossary, and those that were accepted."""
    counts: Counter[str] = Counter()
    for folder in _folders():
        for path in folder.rglob("*.py"):
            if not {"site-packages", "test", "tests"} & set(path.relative_to(folder).parts):
                counts.update(words_of(path.read_text(encoding="utf-8", errors="replace")))
    guide = (ROOT / ".github" / "CONTRIBUTING.md").read_text(encoding="utf-8").split("## Glossary")[1]
    glossary = {
        word for row in re.findall(r"^\| ([^|]+) \|", guide, flags=re.MULTILINE) for word in re.findall(r"\w+", row)
    }
    lines = (ROOT / "scripts" / "accepted_words.txt").read_text(encoding="utf-8").splitlines()
    accepted = {word for line in lines if not line.startswith("#") for word in line.split()}
    return {word for word, count in counts.items() if count >= least} | {word.lower() for word in glossary} | accepted


def _folders() -> Iterator[Path]:
    yield Path(sysconfig.get_paths()["stdlib"])
    for name in PEERS:
        found = importlib.util.find_spec(name)
        if found is not None and found.origin is not None:
            yield Path(found.origin).parent


def unusual_words(least: int) -> dict[str, list[Path]]:
    """The unusual words, each with our files that use it."""
    usual = usual_words(least)
    where: dict[str, list[Path]] = defaultdict(list)
    for path in sorted((ROOT / "lmtransfer").rglob("*.py")):
        for word in words_of(path.read_text(encoding="utf-8")):
            if word not in usual and word.removesuffix("s") not in usual and f"{word}s" not in usual:
                where[word].append(path.relative_to(ROOT))
    for path in sorted((ROOT / "conf").rglob("*.yaml")):
        keys = re.findall(r"^\s*([a-z_]+):", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        for word in {part for key in keys for part in key.split("_") if len(part) > 3}:
            if word not in usual and word.removesuffix("s") not in usual:
                where[word].append(path.relative_to(ROOT))
    return where


def main() -> None:
    """Print the list, most used first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--least", type=int, default=3, help="files of others that make a word usual")
    where = unusual_words(parser.parse_args().least)
    for word, paths in sorted(where.items(), key=lambda item: (-len(item[1]), item[0])):
        print(f"{len(paths):4}  {word:24} {paths[0]}")
    print(f"{len(where)} words")


if __name__ == "__main__":
    run_script(main)
