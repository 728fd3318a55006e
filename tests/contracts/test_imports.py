"""Imports point one way, and every package that is imported is declared."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from lmtransfer.system.optional import EXTRAS

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "lmtransfer"
FILES = sorted(path for path in PACKAGE.rglob("*.py"))

#: What each room may import of lmtransfer, besides itself. The batch is the one file of `data` that models (and so all
#: that runs them) may know; of `training`, the learner is a contract; `tasks.metrics` knows no task.
BATCH, LEARNER, METRICS = "data.batch", "training.learner", "tasks.metrics"
PLAIN = {"errors", "randomness", "system"}
ALLOWED: dict[str, set[str]] = {
    "__init__": {"system.cores", "api"},
    "errors": set(),
    "randomness": set(),
    "system": {"errors"},
    "config": {"errors", "system"},
    "verdicts": set(),
    "models": {"errors", "randomness", BATCH},
    "tokenizers": {"errors", "system", "randomness"},
    "data": PLAIN | {"tokenizers", LEARNER},
    "objectives": {"errors", "randomness", "models", "tokenizers", "data", LEARNER},
    "tasks": {
        "errors",
        "randomness",
        "tokenizers",
        "data",
        "system.door",
        "system.safe_files",
        "system.validation",
        "verdicts.shares",
    },
    "training": PLAIN,
    "runs": PLAIN | {"config", "tokenizers", "models", "data", "training", METRICS},
    "interop": PLAIN
    | {"config", "models", "tokenizers", "data", "objectives", "training", "runs"}
    | {"launch.composing", "launch.config_files"},  # the objective that an imported run continues with is a config
    "launch": {"errors", "system", "config", "runs.create_or_resume", "reporting"},
    "pretraining": PLAIN
    | {"config", "tokenizers", "models", "data", "objectives", "training", "interop", "runs", "tasks.base"},
    "reporting": {"errors", "system", METRICS, "verdicts"}
    | {"config.settings", "config.revisions", "runs.result", "runs.labels", "runs.predictions", "runs.trust"},
    "transfer": PLAIN
    | {"config", "models", "tokenizers", "data", "tasks", "training", "runs", "verdicts", "reporting", "interop"}
    | {"objectives", "pretraining", "launch.jobs"},
    "interop.exporting": PLAIN
    | {"", "config", "models", "tokenizers", "data", "objectives", "tasks", "training", "runs", "interop", "transfer"}
    | {"reporting"},
    "inference": PLAIN
    | {"", "config", "models", "tokenizers", "data", "objectives", "training", "runs", "pretraining", "tasks"}
    | {"reporting", "interop", "transfer"},
    "study": PLAIN | {"config", "verdicts", "reporting", "runs", "launch.jobs", "launch.overrides"},
    "commands": {"*"},
    "api": PLAIN
    | {"config", "models", "tokenizers", "data", "tasks", "training", "runs", "interop", "transfer", "inference"}
    | {"reporting", "launch.command_line", "launch.overrides"},
    "cli": {"errors", "config", "launch.command_line", "launch.completion", "system"},
    "__main__": {"cli"},
}

#: A room inside another that stands on more than it: whoever may import the outer one may not import it for that.
APART = {"interop.exporting"}

#: The rooms inside a room, each of which may import those before it.
INNER: dict[str, tuple[str, ...]] = {
    "data": ("documents", "remote_files", "declared_sizes", "files", "parquet_files", "table_rows", "tables")
    + ("batch", "corpora", "token_shards", "token_frequencies", "token_cache", "screening", "micro_batches"),
    "reporting": (
        "verdict_text",
        "runs",
        "what_now",
        "table",
        "result_tables",
        "figures",
        "sections",
        "answer",
        "beyond_chance",
        "page",
    )
    + ("records", "write", "comparison"),
}


#: The file that names components of other rooms as types, which only the type checker imports.
OF_TYPES = PACKAGE / "config/settings.py"


@cache
def imported(path: Path) -> list[tuple[int, str]]:
    """The modules that a file imports, with line numbers, at any depth of the file."""
    found = []
    tree = ast.parse(path.read_text(encoding="utf-8"))
    if path == OF_TYPES:
        tree.body = [node for node in tree.body if not (isinstance(node, ast.If) and is_for_types(node.test))]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.extend((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            module = node.module or ""
            names = [f"{module}.{alias.name}" for alias in node.names] if module.count(".") < 2 else []
            is_module = [name for name in names if (ROOT / (name.replace(".", "/") + ".py")).is_file()]
            found.extend((node.lineno, name) for name in is_module or [module])
    return found


def is_for_types(test: ast.expr) -> bool:
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


def room_of(module: str) -> str:
    """The room of ``lmtransfer.<module>``."""
    inner = ".".join(module.split(".")[:2])
    return inner if inner in APART else module.split(".")[0]


def room_of_file(path: Path) -> str:
    return room_of(".".join(path.relative_to(PACKAGE).with_suffix("").parts))


def may_import(part: str, module: str) -> bool:
    """Whether ``lmtransfer.<part>`` may import ``lmtransfer.<module>``."""
    allowed = ALLOWED[part] | {"config.types"}  # the types of settings are a vocabulary; they import nothing
    if module == "" or room_of(module) == part or "*" in allowed:
        return True
    return any(
        (module == name or module.startswith(name + ".")) and room_of(module) == room_of(name) for name in allowed
    )


def test_no_arrow_runs_backwards() -> None:
    wrong = []
    for path in FILES:
        part = room_of_file(path)
        for line, name in imported(path):
            if name == "lmtransfer" or name.startswith("lmtransfer."):
                module = name.removeprefix("lmtransfer").removeprefix(".")
                if not may_import(part, module):
                    wrong.append(f"{path.relative_to(ROOT)}:{line}: {part} may not import {name}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("room", INNER)
def test_no_arrow_runs_backwards_inside_a_room(room: str) -> None:
    wrong = []
    for path in (PACKAGE / room).rglob("*.py"):
        inner = path.relative_to(PACKAGE / room).parts[0].removesuffix(".py")
        after = set() if inner == "__init__" else set(INNER[room][INNER[room].index(inner) + 1 :])
        for line, name in imported(path):
            if name.startswith(f"lmtransfer.{room}.") and name.split(".")[2] in after:
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {inner} may not import {name}")
    assert not wrong, "\n".join(wrong)


def test_only_launch_knows_how_settings_are_composed() -> None:
    composed = {path for path in FILES if {"hydra", "omegaconf"} & {name.split(".")[0] for _, name in imported(path)}}
    assert {room_of_file(path) for path in composed} == {"launch"}


def test_settings_are_objects_below_launch() -> None:
    """A mapping is data: of a saved run, of a task's files, of a published model."""
    takes = []
    for path in FILES:
        if room_of_file(path) not in {"commands", "pretraining", "transfer", "runs", "training", "inference", "study"}:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                for argument in (*node.args.args, *node.args.kwonlyargs):
                    kind = "" if argument.annotation is None else ast.unparse(argument.annotation)
                    if argument.arg in ("cfg", "settings", "conf") and re.match(
                        r"(Any|dict|Mapping|DictConfig)\b", kind
                    ):
                        takes.append(f"{path.relative_to(ROOT)}:{node.lineno}: {node.name}({argument.arg}: {kind})")
    assert takes == []


def test_no_circle_of_rooms() -> None:
    """Also by imports within functions: a room is understood with what it stands on, and without what stands on it."""
    stands_on: dict[str, set[str]] = {}
    for path in FILES:
        part = room_of_file(path)
        names = [name for _, name in imported(path) if name.startswith("lmtransfer.")]
        below = {room_of(name.removeprefix("lmtransfer.")) for name in names}
        stands_on[part] = stands_on.get(part, set()) | (below - {part})
    order: list[str] = []
    while len(order) < len(stands_on):
        free = [part for part, below in stands_on.items() if part not in order and below <= set(order)]
        assert free, f"a circle among {sorted(set(stands_on) - set(order))}"
        order += free


def test_no_circle_of_modules() -> None:
    def name_of(path: Path) -> str:
        return ".".join(path.relative_to(ROOT).with_suffix("").parts)

    modules = {name_of(path) for path in FILES}
    graph = {name_of(path): {name for _, name in imported(path)} & modules for path in FILES}
    TopologicalSorter(graph).prepare()  # raises CycleError


def test_nothing_imports_commands_or_cli() -> None:
    for part, allowed in ALLOWED.items():
        if part not in ("commands", "__main__"):
            assert not any(name.split(".")[0] in ("commands", "cli") for name in allowed)


def test_the_rules_catch_an_arrow_that_runs_backwards() -> None:
    assert not may_import("models", "objectives.base")
    assert not may_import("models", "data.store")
    assert may_import("models", "data.batch")
    assert not may_import("training", "objectives.base")
    assert not may_import("training", "data.batch")
    assert not may_import("transfer", "interop.exporting.card")
    assert not may_import("interop", "interop.exporting.card")
    assert not may_import("models", "commands.list")


def test_every_third_party_import_is_a_declared_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {re.split(r"[<>=!~\[ ]", entry)[0].lower().replace("-", "_") for entry in project["dependencies"]}
    names |= {"hydra"} if "hydra_core" in names else set()
    names |= {"yaml"} if "pyyaml" in names else set()
    names |= {"sklearn"} if "scikit_learn" in names else set()
    own = set(sys.stdlib_module_names) | {"lmtransfer", "_typeshed"}
    undeclared = {
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in FILES
        for line, name in imported(path)
        if name.split(".")[0] not in own | names
    }
    assert not undeclared


def test_every_dependency_is_needed() -> None:
    """Each is imported somewhere; what comes with torch or datasets all the same need not be asked for again."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    imports = {name.split(".")[0] for path in FILES for _, name in imported(path)}
    modules = {"hydra-core": "hydra", "pyyaml": "yaml", "scikit-learn": "sklearn"}
    modules |= {"annotated-types": "annotated_types", "typing-extensions": "typing_extensions"}
    modules |= {"protobuf": "sentencepiece"}  # which imports it to parse models, and does not ask for it
    declared = [re.split(r"[<>=!~\[ ]", entry)[0] for entry in project["dependencies"]]
    assert [name for name in declared if modules.get(name, name) not in imports] == []


def test_every_optional_package_is_in_its_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for package, extra in EXTRAS.items():
        entries = project["optional-dependencies"][extra]
        named = [re.split(r"[<>=!~\[ ]", entry)[0].replace("-", "_") for entry in entries]
        assert package in named, f"pip install 'lmtransfer[{extra}]' would not install {package}"


def test_nothing_names_hydras_internals() -> None:
    name = "hydra." + "_internal"
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split(
        "\n"
    )
    files = [ROOT / line for line in tracked if line] or [
        path for path in ROOT.rglob("*.py") if ".venv" not in path.parts
    ]
    texts = {path: path.read_bytes() for path in files if path.is_file()}
    assert texts
    assert [str(path) for path, text in texts.items() if name.encode() in text] == []
