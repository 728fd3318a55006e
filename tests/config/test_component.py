"""What a config may name, what is built from it, and that nothing else is ever constructed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import configs
from fakes.configs import Inherits, Net, Part, check_problems, write_tree
from omegaconf import OmegaConf
from support.nodes import build
from support.refusals import refuses

from lmtransfer.config.component import Node, resolve
from lmtransfer.errors import ConfigError
from lmtransfer.models.bert import BertEncoder

HERE = Path(__file__)


@pytest.fixture(autouse=True)
def allow_toys(monkeypatch: pytest.MonkeyPatch) -> None:
    configs.allow(monkeypatch)
    monkeypatch.setenv("LMTRANSFER_ALLOW", "somewhere_else, fakes.configs")


def test_classes_of_allowed_packages_are_found() -> None:
    assert resolve("lmtransfer.models.bert.BertEncoder") is BertEncoder
    assert resolve("torch.optim.AdamW") is torch.optim.AdamW
    assert resolve("fakes.configs.Net") is configs.Net


@pytest.mark.parametrize(
    "target",
    [
        "os.system",
        "pip.main",
        "torch.load",
        "torch.optimizers.AdamW",
        "lmtransferred.Net",
    ],
)
def test_other_packages_are_refused_by_name(target: str) -> None:
    with refuses(ConfigError, "model._target_: ", f"'{target}'", "LMTRANSFER_ALLOW"):
        resolve(target, key="model")


def test_a_refused_package_is_not_even_imported(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hostile_module.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with refuses(ConfigError, "'hostile_module.Anything'", "LMTRANSFER_ALLOW"):
        resolve("hostile_module.Anything")
    assert "hostile_module" not in sys.modules


@pytest.mark.parametrize("target", ["fakes.configs.system", "fakes.configs.Path", "fakes.configs.not_a_class"])
def test_foreign_objects_in_allowed_modules_are_refused(target: str) -> None:
    with refuses(ConfigError, f"'{target}'", "class", "torch.optim, somewhere_else, fakes.configs") as raised:
        resolve(target)
    assert "LMTRANSFER_ALLOW" not in str(raised.value)


@pytest.mark.parametrize(
    ("target", "module"),
    [
        ("lmtransfer.config.component.os.system", "lmtransfer.config.component"),
        ("lmtransfer.cli.sys.exit", "lmtransfer.cli"),
        ("lmtransfer.models.bert.BertEncoder.__init__", "lmtransfer.models.bert"),
    ],
)
def test_walking_through_an_allowed_module_is_refused(target: str, module: str) -> None:
    with refuses(ConfigError, f"'{target}'", f"'{module}'", "package"):
        resolve(target)


@pytest.mark.parametrize("target", [None, "", "lmtransfer", "lmtransfer.errors.Data Error"])
def test_what_is_no_path_of_a_class_is_said(target: object) -> None:
    with refuses(ConfigError, f"{target!r}", "package.module.Class"):
        resolve(target)


def test_misspelt_classes_and_modules_are_answered_with_the_nearest() -> None:
    with refuses(ConfigError, "'lmtransfer.models.bert.BertEncodr'", "'BertEncoder'"):
        resolve("lmtransfer.models.bert.BertEncodr")
    with refuses(ConfigError, "'lmtransfer.erors.DataError'", "'errors'"):
        resolve("lmtransfer.erors.DataError")


@pytest.mark.parametrize(
    ("content", "names"),
    [
        (None, ["'their_package'", "PYTHONPATH"]),
        ("def (", ["__init__.py:1", "SyntaxError"]),
        ("\nvalue = 1 / 0\n", ["__init__.py:2", "ZeroDivisionError"]),
        ("import no_such_module\n", ["'no_such_module'", "not installed"]),
    ],
    ids=["missing", "no Python", "fails", "needs another"],
)
def test_a_package_that_cannot_be_imported_is_the_users(
    content: str | None, names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if content is not None:
        (tmp_path / "their_package").mkdir()
        (tmp_path / "their_package/__init__.py").write_text(content)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("LMTRANSFER_ALLOW", "their_package")
    with refuses(ConfigError, "model._target_", "their_package.Model", *names):
        resolve("their_package.Model", key="model")


def node(**arguments: Any) -> Node[Any]:
    return Node({"_target_": "fakes.configs.Net", **arguments}, "model")


def part(**arguments: Any) -> dict[str, Any]:
    return {"_target_": "fakes.configs.Part", **arguments}


def test_config_and_runtime_arguments_are_bound_and_others_dropped() -> None:
    net = build(node(dim=1e1, rate=1), vocab_size=100, tokenizer="dropped")
    assert isinstance(net, Net)
    assert (net.vocab_size, net.dim, net.rate) == (100, 10, 1.0)
    assert type(net.dim) is int
    assert type(net.rate) is float


def test_inherited_constructors_are_read() -> None:
    net = build(OmegaConf.create({"_target_": "fakes.configs.Inherits", "dim": 3}), vocab_size=1)
    assert isinstance(net, Inherits)
    assert net.dim == 3


def test_nested_components_are_built_first_in_values_and_lists() -> None:
    net = build(node(part=part(size=2, shape=[1, 2]), parts=[part(size=3), part(size=4)]), vocab_size=1)
    assert isinstance(net.part, Part)
    assert (net.part.size, net.part.shape) == (2, (1, 2))
    assert [inner.size for inner in net.parts] == [3, 4]


def test_a_component_that_the_command_built_replaces_its_node() -> None:
    own = Part(size=9)
    assert build(node(part=part()), vocab_size=1, part=own).part is own


def test_interpolations_are_resolved() -> None:
    cfg = OmegaConf.create({"width": 12, "model": {"_target_": "fakes.configs.Net", "dim": "${width}"}})
    assert build(cfg.model, vocab_size=1).dim == 12


def test_every_problem_is_listed_with_its_full_key() -> None:
    wrong = node(dim="abc", nrom="pre", norm="pots", limit=None, rate=None, part=part(siez=1), _partial_=True)
    with pytest.raises(ConfigError) as error:
        build(wrong)
    expected = {
        "model.dim": ("'abc'", "integer"),
        "model.nrom": ("Net", "'norm'", "vocab_size, dim, rate, norm, limit, part, parts"),
        "model.norm": ("'pots'", "pre, post"),
        "model.rate": ("null", "number"),
        "model.part.siez": ("Part", "'size'", "size, shape"),
        "model.part.size": ("Part",),
        "model._partial_": ("_target_",),
        "model.vocab_size": ("Net",),
    }
    check_problems(error.value.problems, expected)


def test_an_argument_from_both_sides_is_a_problem() -> None:
    with refuses(ConfigError, "model.vocab_size: ", "command"):
        build(node(vocab_size=5), vocab_size=100)
    assert build(node(vocab_size=None), vocab_size=100).vocab_size == 100


def test_a_node_without_target_is_no_component() -> None:
    with refuses(ConfigError, "model: ", "_target_", "{'dim': 3}"):
        build(Node({"dim": 3}, "model"))


def test_optimizers_of_torch_are_built() -> None:
    weights = [torch.nn.Parameter(torch.zeros(2))]
    optimizer = build(OmegaConf.create({"_target_": "torch.optim.AdamW", "lr": 1, "betas": [0, 0.9]}), params=weights)
    assert isinstance(optimizer, torch.optim.AdamW)
    assert optimizer.defaults["betas"] == (0, 0.9)


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
    "optimizer": ["lmtransfer.training.optim.optimizers.Optimizer", "torch.optim.Optimizer"],
    "phases.first.optimizer": ["lmtransfer.training.optim.optimizers.Optimizer", "torch.optim.Optimizer"],
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

# classes that are no components were offered at all keys above: some of them will do, and
# some components where none fits
others = sorted(classes - components, key=path_of)[::8]
some = sorted(components, key=path_of)[::10]
forms = {"alone": lambda v: v, "list": lambda v: [v], "mapping": lambda v: {"k": v}}
accepted = set()
for annotation, host, name in hosts.values():
    takes_some = annotation is typing.Any or any(fits(annotation, form) for form in forms)
    for form, wrap in forms.items():
        if form != "alone" and not typing.get_args(annotation) and annotation is not typing.Any:
            continue
        right = fits(annotation, form)
        for cls in [*(components if takes_some else some), *(others if form == "alone" else [])]:
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


@pytest.mark.slow
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
    "place", ["value", "thing", "name", "data", "duck", "bare[0]", "unknown", "table.k.deeper", "each[0]", "vocab_size"]
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
    node = {"_target_": "lmtransfer.data.corpora.corpus.FileCorpus", "name": "x", "path": str(tmp_path)}
    with refuses(ConfigError, "model._target_: ", "FileCorpus", "Encoder"):
        build(Node(node, "model"))
