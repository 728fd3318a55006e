"""What a config may name: every class of the package is offered to the checker, at every kind of argument."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fakes.configs import write_tree
from support.refusals import refuses

from lmtransfer.config.component import build
from lmtransfer.errors import ConfigError

HERE = Path(__file__)

#: The declared bases, by the key at which a config names their subclasses.
AT_KEYS = {
    "model": ["lmtransfer.models.base.Encoder"],
    "objective.losses.any": ["lmtransfer.objectives.base.Objective"],
    "phases.first.objective.losses.any": ["lmtransfer.objectives.base.Objective"],
    "objective.rows": ["lmtransfer.objectives.rows.base.Rows"],
    "objective.corruption": ["lmtransfer.objectives.corruption.masking.Corruption"],
    "objective.corruption.selection": ["lmtransfer.objectives.corruption.masking.Selection"],
    "corpus": ["lmtransfer.data.documents.Corpus"],
    "corpus.parts.any": ["lmtransfer.data.documents.Corpus"],
    "screening": ["lmtransfer.data.screening.Screening"],
    "tokenizer": ["lmtransfer.tokenizers.trainers.TokenizerTrainer"],
    "embeddings": ["lmtransfer.pretraining.counted_embeddings.CountedEmbeddings"],
    "optimizer": ["lmtransfer.training.optim.optimizer.Optimizer", "torch.optim.Optimizer"],
    "phases.first.optimizer": ["lmtransfer.training.optim.optimizer.Optimizer", "torch.optim.Optimizer"],
    "schedule": ["lmtransfer.training.optim.schedules.Schedule"],
    "tracker.any": ["lmtransfer.training.trackers.base.Service", "lmtransfer.training.trackers.base.Jsonl"],
    "task": ["lmtransfer.tasks.base.Task", "lmtransfer.tasks.base.TaskGroup"],
    "transfer": ["lmtransfer.transfer.method.TransferMethod"],
}
#: Runs in a process of its own, because an audit hook stays for ever and most modules are imported here already.
OFFER = """
import sys
effects = []
WRITING = {"os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate", "os.link", "os.symlink", "shutil.rmtree"}
def hook(event, args):
    writes = event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+")
    if event.startswith(("subprocess", "os.exec", "os.fork", "os.posix_spawn", "os.system", "socket.connect",
                         "socket.bind")) or event in WRITING or (writes and "__pycache__" not in str(args[0])):
        if "torchinductor" in str(args):  # torch makes a folder of its own when it is imported
            return
        effects.append(f"{event} {str(args)[:200]}")
import collections.abc, importlib, inspect, json, pkgutil, types, typing
import hydra, torch  # what libraries do while they are imported is theirs
sys.addaudithook(hook)
import lmtransfer
from lmtransfer.config import component

classes = {torch.optim.Optimizer}
for module in pkgutil.walk_packages(lmtransfer.__path__, "lmtransfer."):
    if not module.name.endswith("__main__"):
        members = vars(importlib.import_module(module.name)).values()
        classes |= {value for value in members if isinstance(value, type) and value.__module__ == module.name}
classes |= {value for value in vars(torch.optim).values() if isinstance(value, type)}
imports, effects[:] = list(effects), []

at_keys = json.loads(sys.stdin.read())
def loaded(path):
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)
def subclasses(bases):
    return {cls for cls in classes if issubclass(cls, tuple(map(loaded, bases)))}
def path_of(cls):
    return f"{cls.__module__}.{cls.__qualname__}"

components = subclasses([base for bases in at_keys.values() for base in bases])
hosts = {}
for host in components:
    for name, argument in component.arguments_of(host).items():
        hosts.setdefault(str(argument.annotation), (argument.annotation, host, name))

# an annotation that cannot be read would let every value pass
unread = [f"{path_of(host)}.{name}" for host in components if host.__module__.startswith("lmtransfer.")
          for name, parameter in inspect.signature(host).parameters.items()
          if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
          and component.arguments_of(host)[name].annotation is typing.Any and parameter.annotation != "Any"]

constructed, wrong = [], []
def note(self, *args, **kwargs):
    constructed.append(str(self))
    raise TypeError("constructed")
for cls in classes:  # the arguments are known by now
    if not cls.__module__.startswith(("lmtransfer.config.", "lmtransfer.errors", "lmtransfer.system.validation")):
        cls.__init__ = note

for key, bases in at_keys.items():
    right = subclasses(bases)
    for cls in classes:
        problems = component.component_problems({"_target_": path_of(cls)}, key=key, nodes={}, complete=False)
        if (f"{key}._target_" not in problems) != (cls in right) and "<locals>" not in path_of(cls):
            wrong.append(f"{key}: {path_of(cls)}")

def fits(annotation, form):
    # the classes that an annotation asks for, in the form of one component, a list or a mapping
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return set().union(*(fits(member, form) for member in inner))
    if form == "alone":
        return {cls for cls in components if issubclass(cls, annotation)} if annotation in components else set()
    container = {"list": (collections.abc.Sequence, list, tuple), "mapping": (collections.abc.Mapping, dict)}[form]
    return fits(inner[-1], "alone") if origin in container else set()

# classes that are no components were offered at all keys above: some of them will do
others = sorted(classes - components, key=path_of)[::8]
forms = {"alone": lambda v: v, "list": lambda v: [v], "mapping": lambda v: {"k": v}}
accepted = set()
for annotation, host, name in hosts.values():
    for form, wrap in forms.items():
        if form != "alone" and not typing.get_args(annotation) and annotation is not typing.Any:
            continue
        right = fits(annotation, form)
        for cls in [*components, *others] if form == "alone" else components:
            values = {"_target_": path_of(host), name: wrap({"_target_": path_of(cls)})}
            problems = component.component_problems(values, key="x", nodes={}, complete=False)
            if not any(where.startswith(f"x.{name}") for where in problems):
                accepted.add((str(annotation), form))
                wrong += [] if cls in right else [f"{annotation}, {form}: {path_of(cls)} fits"]
            elif cls in right:
                wrong.append(f"{annotation}, {form}: {path_of(cls)} does not fit: {problems}")
print(json.dumps({"wrong": wrong, "unread": unread, "constructed": constructed, "imports": imports, "effects": effects,
                  "accepted": sorted(accepted), "classes": len(classes)}))
"""


def test_only_subclasses_of_the_declared_bases_fit_and_nothing_is_constructed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", OFFER],
        input=json.dumps(AT_KEYS),
        env={**os.environ, "PYTHONPATH": str(HERE.parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["wrong"] == []
    assert said["unread"] == []
    assert said["constructed"] == []
    assert (said["imports"], said["effects"]) == ([], [])
    assert said["classes"] > 500
    texts = {tuple(place) for place in said["accepted"]}
    assert ("lmtransfer.objectives.corruption.masking.Selection | None", "alone") in texts
    assert ("collections.abc.Mapping[str, lmtransfer.data.documents.Corpus]", "mapping") in texts


LOUD = """
from __future__ import annotations
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from lmtransfer.tokenizers.trainers import TokenizerTrainer

class Loud:
    def __init__(self, *, file: str) -> None:
        Path(file).touch()

@dataclass
class LoudData:
    file: str
    def __post_init__(self) -> None:
        Path(self.file).touch()

class LoudTrainer(TokenizerTrainer):
    key = "loud"
    def __init__(self, *, file: str) -> None:
        Path(file).touch()

class Anything(Protocol): ...

class Taker(TokenizerTrainer):
    key = "taker"
    def __init__(self, *, vocab_size: int = 9, value: Any = None, thing: object = None, name: str | None = None,
                 table: Mapping[str, Any] | None = None, each: Sequence[Any] = (), data: LoudData | None = None,
                 duck: Anything | None = None, bare: list = [], unknown: Nowhere = None) -> None:
        raise AssertionError("constructed")
"""


@pytest.mark.parametrize("offered", ["Loud", "LoudData", "LoudTrainer"])
@pytest.mark.parametrize(
    "place",
    [
        "value",
        "thing",
        "name",
        "data",
        "duck",
        "bare[0]",
        "unknown",
        "table.k",
        "table.k.deeper",
        "each[0]",
        "vocab_size",
    ],
)
def test_the_users_own_classes_are_checked_before_they_are_constructed(
    offered: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tree(tmp_path, {"loud_package.py": LOUD})
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("LMTRANSFER_ALLOW", "loud_package")
    monkeypatch.delitem(sys.modules, "loud_package", raising=False)
    canary = tmp_path / "canary"
    value: object = {"_target_": f"loud_package.{offered}", "file": str(canary)}
    name, *deeper = place.removesuffix("[0]").split(".")
    for key in reversed(deeper):
        value = {key: value}
    node = {"_target_": "loud_package.Taker", name: [value] if place.endswith("[0]") else value}
    with refuses(ConfigError, name, offered):
        build(node)
    assert not canary.exists()


def test_a_component_at_the_wrong_key_is_refused_in_one_line(tmp_path: Path) -> None:
    from omegaconf import OmegaConf

    node = {"_target_": "lmtransfer.data.corpora.corpus.FileCorpus", "name": "x", "path": str(tmp_path)}
    with refuses(ConfigError, "model._target_: ", "FileCorpus", "Encoder"):
        build(OmegaConf.create({"model": node}).model)
