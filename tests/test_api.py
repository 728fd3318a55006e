"""The commands as functions: the same runs, answers and messages as the command line, and nothing left behind."""

from __future__ import annotations

import inspect
import json
import math
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import dedent
from typing import Any, Literal

import numpy as np
import pytest
import torch
from fakes.tiny_pretraining import SHORT, TEXT, TINY
from fakes.transfer_files import QUICK, lmtransfer, make_world
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.version import VersionBase
from omegaconf import OmegaConf
from support.refusals import refuses
from torch.nn import functional

import lmtransfer as package
from lmtransfer import evaluate, export, finetune, load, predict, pretrain, report
from lmtransfer.api import Run, check_arguments, command_line, format_value
from lmtransfer.config import main_help, paths
from lmtransfer.config.types import TopK
from lmtransfer.data.batch import pack
from lmtransfer.errors import ConfigError, DataError, RunDirectoryError
from lmtransfer.launch.config_files import primary_config
from lmtransfer.training import hardware, precision

TWO_STEPS = [*TINY, *TEXT, *SHORT, "train.steps=2", "experiment=null", "hardware=exact"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small world with a text, a pretrained run ``masked`` and a finetuned run ``toy`` of two seeds."""
    folder = tmp_path_factory.mktemp("world")
    make_world(folder)
    lines = [line.partition("\t")[0] for line in (folder / "data/train.tsv").read_text().splitlines()[1:]]
    (folder / "text.txt").write_text("\n\n".join(lines) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("LMTRANSFER_CACHE", str(folder / "cache"))
        patch.delenv("LMTRANSFER_DATA", raising=False)
        pretrain(*TWO_STEPS, name="masked")
        finetune(*QUICK, seeds=2, control=True, name="toy")
    return folder


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Hydra's state is the same after the test."""
    before = (GlobalHydra.instance().hydra, HydraConfig.instance().cfg, VersionBase.instance().version_base)
    yield
    assert (GlobalHydra.instance().hydra, HydraConfig.instance().cfg, VersionBase.instance().version_base) == before


def last_losses(run: str) -> list[float]:
    return [json.loads(line)["loss"] for line in Path(run, "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_the_package_imports_nothing_heavy_until_a_function_is_used() -> None:
    code = """
        import sys, lmtransfer
        assert set(lmtransfer.__all__) <= set(dir(lmtransfer))
        print([name for name in ("torch", "hydra", "numpy", "omegaconf", "rich") if name in sys.modules])
        lmtransfer.pretrain
        try:
            lmtransfer.no_such_name
        except AttributeError as error:
            print(error)
    """
    done = subprocess.run([sys.executable, "-c", dedent(code)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == "[]"
    assert "no_such_name" in done.stdout.splitlines()[1]
    for name in package.__all__:  # beside modules of the same names
        assert callable(getattr(package, name)), name
        assert getattr(package, name).__doc__


@pytest.mark.parametrize("name", ["pretrain", "probe", "finetune", "evaluate", "predict", "export", "report"])
def test_a_function_states_the_settings_of_its_command(name: str) -> None:
    function = getattr(package, name)
    parameters = inspect.signature(function).parameters
    assert set(parameters) - {"words", "config_dir"} == set(primary_config(name))
    assert not [key for key in primary_config(name) if f"\n    {key}: " not in inspect.getdoc(function)]


def test_the_guide_lists_all_functions() -> None:
    section = (main_help.GUIDES / "start.md").read_text().partition("## In Python")[2].partition("\n## ")[0]
    listed = [name for line in section.splitlines() if line.startswith("| `") for name in re.findall(r"`(\w+)`", line)]
    assert set(package.__all__) <= set(listed)
    assert all(f"| `{name}" in section or f", `{name}` |" in section for name in package.__all__)


USER_CODE = """
import lmtransfer
from pathlib import Path
from lmtransfer import evaluate, export, finetune, load, load_records, predict, pretrain, probe, report

run = pretrain("corpus.path=my", corpus="text", train={"steps": 200, "save_at": [0, "1M"]}, tracker=["jsonl", "wandb"])
tuned = finetune(init=run, task={"num_train": 9}, hardware={"device": "cpu"}, experiment=None, config_dir=Path("mine"))
probe(init=Path("runs/a"), hardware="exact", control=True, learning_rates=[1, 1e-3])
evaluate(run=tuned, revisions="all"), predict(run=tuned, text="a"), export(run=run, format="onnx"), load(tuned)
report("runs", Path("more"), figures=False), load_records("runs"), lmtransfer.__version__
"""
WRONG_CODE = {
    'pretrain(seeds="three")': "seeds",
    "pretrain(trian={})": "trian",
    'pretrain(train={"stepz": 3})': "stepz",
    'finetune(hardware={"precision": "fp8"})': "hardware",
    "finetune(init=3)": "init",
    'finetune(checkpoint="first")': "checkpoint",
    "report(runs=[1])": "List item",
    "lmtransfer.pretrian()": "pretrian",
}


def test_a_type_checker_accepts_right_calls_and_names_wrong_settings(tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(USER_CODE + "\n".join(WRONG_CODE))
    skip = "[mypy]\n[mypy-lmtransfer.*]\nfollow_imports = skip\n[mypy-lmtransfer]\nfollow_imports = normal\n"
    (tmp_path / "mypy.ini").write_text(skip)  # the stub alone, not the modules that it imports
    words = ["--config-file", "mypy.ini", "--cache-dir", os.devnull, "user.py"]
    done = subprocess.run([sys.executable, "-m", "mypy", *words], cwd=tmp_path, capture_output=True, text=True)
    problems = [line for line in done.stdout.splitlines() if ": error: " in line]
    first = USER_CODE.count("\n") + 1
    assert [line.split(":")[1] for line in problems] == [str(first + place) for place in range(len(WRONG_CODE))]
    assert [problem for problem, name in zip(problems, WRONG_CODE.values(), strict=True) if name not in problem] == []


@pytest.mark.slow
def test_a_call_makes_the_run_of_the_command_line(world: Path, nothing_left: None) -> None:
    assert lmtransfer("pretrain", *TWO_STEPS, "name=typed", "seed=3", "train.eval_every=1") == 0
    run = pretrain(*TWO_STEPS[:-3], train={"steps": 2, "eval_every": 1}, experiment=None, hardware="exact", seed=3,
                   name="called")  # fmt: skip
    assert run.path == world / "runs/pretrain/called"
    assert last_losses("runs/pretrain/called") == last_losses("runs/pretrain/typed")
    assert run.result.metrics == json.loads(Path("runs/pretrain/typed/result.json").read_text())["metrics"]
    assert run.config["train"]["steps"] == 2
    assert [line["step"] for line in run.history] == [1, 2]


def test_a_session(world: Path, nothing_left: None) -> None:
    run = finetune(*QUICK[:-3], init=Path("runs/pretrain/base"), train={"epochs": 1}, name="mine")
    scored = evaluate(run=run, split="dev", hardware="exact", name="scored")
    assert scored.result.metrics["accuracy"] == run.result.mean == run.result.metrics["accuracy"]
    both = report("runs/finetune", figures=False, to="mine")
    assert {row["run"] for row in both.content["rows"]} >= {"mine", "toy"}
    assert both.page.read_text().startswith("<!doctype html>")
    folder = export(run=run, to="out", format="tensors")
    assert (folder / "model.safetensors").is_file()


def test_predict_gives_what_the_command_writes(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run=runs/finetune/toy", "hardware=exact"]
    text = "a good film, [quite] 'great' = ${x}"
    assert lmtransfer("predict", *words, f"text={text}") == 0
    typed = json.loads(capsys.readouterr().out)
    assert predict(*words, text=text) == [typed]
    assert capsys.readouterr().out == ""
    assert len(predict(*words, input="data/dev.tsv")) == 60
    assert predict(*words, split="dev", output="out.jsonl") == []
    assert len(Path("out.jsonl").read_text().splitlines()) == 60


def test_errors_are_those_of_the_command_line(
    world: Path, nothing_left: None, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[tuple[Any, list[str], type[Exception]]] = [
        (pretrain, ["model=brt"], ConfigError),
        (pretrain, ["trian=3", "no_key"], ConfigError),
        (finetune, ["init=runs/nothing", "task=sst2"], RunDirectoryError),
        (predict, ["run=runs/finetune/toy"], ConfigError),
    ]
    for function, words, kind in calls:
        assert lmtransfer(function.__name__, *words) == 2
        with pytest.raises(kind) as raised:
            function(*words)
        assert capsys.readouterr().err == f"lmtransfer: {raised.value}\n"
    assert sorted(os.listdir("runs")) == ["finetune", "pretrain"]
    assert not (set(os.listdir("runs/pretrain")) - {"base", "masked"})


def test_a_call_makes_one_run(world: Path, nothing_left: None) -> None:
    with refuses(ConfigError, "objective.mask_prob=0.1,0.2"):
        pretrain("-m", "objective.mask_prob=0.1,0.2")
    with refuses(ConfigError, "hydra.job.name"):
        pretrain("hydra.job.name=x")
    with refuses(ConfigError, "task=glue", "mrpc"):
        finetune(init="runs/pretrain/base", task="glue")
    with refuses(ConfigError, "name"):
        pretrain("name=a", name="b")


def test_a_program_of_hydra_keeps_its_own_state(world: Path) -> None:
    with initialize_config_dir(config_dir=str(paths.conf_dir()), version_base="1.2"):
        mine, base = GlobalHydra.instance().hydra, VersionBase.instance().version_base
        predict(run="runs/finetune/toy", text="good", hardware="exact")
        assert GlobalHydra.instance().hydra is mine
        assert VersionBase.instance().version_base is base
        assert compose("list").what == "all"


def test_threads_wait_for_each_other(world: Path, nothing_left: None) -> None:
    """Different settings at the same time; each thread gets its own answers, and no signal handler is needed."""
    found: dict[int, Any] = {}

    def work(top_k: int) -> None:
        run = pretrain(*TWO_STEPS, seed=top_k, name=f"of-{top_k}")
        found[top_k] = (run, predict(run=run, text="good [MASK]", top_k=top_k, hardware="exact"))

    threads = [threading.Thread(target=work, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [1, 2]
    for number, (run, answers) in found.items():
        assert run.config["seed"] == number
        assert len(answers[0]["masks"][0]["candidates"]) == number


def test_a_script_needs_no_guard_for_worker_processes(tmp_path: Path) -> None:
    """Documents are read by other processes, which must not run the script again."""
    script = """
        from lmtransfer.system.workers import workers
        print("once", flush=True)
        with workers(2) as pool:
            print(sum(pool.submit(pow, number, 2).result() for number in range(4)))
    """
    (tmp_path / "mine.py").write_text(dedent(script))
    done = subprocess.run([sys.executable, "mine.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()) == (0, ["once", "14"]), done.stderr


def test_a_loaded_run_answers_as_predict_does(world: Path) -> None:
    for run in ("runs/finetune/toy", "runs/finetune/toy/seed-1"):
        loaded = load(run, device="cpu", precision="fp32")
        answers = loaded.predict(["a good film", "an awful plot"])
        said = [predict(run=run, text=text, hardware="exact")[0] for text in ("a good film", "an awful plot")]
        assert [answer["label"] for answer in answers] == [answer["label"] for answer in said]
        assert answers[1]["probabilities"] == pytest.approx(said[1]["probabilities"], abs=1e-5)
        assert loaded.task is not None
        assert loaded.task.labels == ("negative", "positive")
    assert loaded.predict("a good film")[0]["label"] == answers[0]["label"]
    mean = load("runs/finetune/toy", ensemble=True, device="cpu", precision="fp32").predict("a good film")[0]
    ensemble = predict(run="runs/finetune/toy", ensemble=True, text="a good film", hardware="exact")[0]
    assert mean["probabilities"] == pytest.approx(ensemble["probabilities"], abs=1e-5)
    masks = load("runs/pretrain/masked", precision="fp32").predict("a [MASK] film", top_k=2)[0]["masks"]
    (again,) = predict(run="runs/pretrain/masked", text="a [MASK] film", top_k=2, hardware="exact")
    assert [found["piece"] for found in masks[0]["candidates"]] == [
        found["piece"] for found in again["masks"][0]["candidates"]
    ]


def test_vectors_are_the_mean_of_the_last_layer(world: Path) -> None:
    loaded = load("runs/pretrain/base", device="cpu", precision="fp32")
    texts = ["a good film", "plot", "the actor was very dull with a sad story"]
    vectors = loaded.vectors(texts)
    assert not loaded.encoder.training
    for text, vector in zip(texts, vectors, strict=True):
        ids = [loaded.tokenizer.cls_id, *loaded.tokenizer.encode(text).ids, loaded.tokenizer.sep_id]
        with torch.no_grad():
            expected = loaded.encoder(pack([np.array(ids)])).last.mean(0)
        np.testing.assert_allclose(vector, expected, atol=1e-5)
    assert vectors.shape == (3, 16)
    assert loaded.vectors(texts, layers=[0, "last"], pooling="max").shape == (3, 32)
    with torch.no_grad():
        first = loaded.encoder(pack([np.array(ids)])).layers[0][0]
    np.testing.assert_allclose(loaded.vectors(texts, layers=0, pooling="cls")[2], first, atol=1e-5)
    with refuses(ConfigError, "pooling=bilstm"):
        loaded.vectors(texts, pooling="bilstm")


def test_nearest_tokens_by_brute_force(world: Path) -> None:
    loaded = load("runs/pretrain/base", device="cpu", precision="fp32")
    tokenizer, table = loaded.tokenizer, loaded.encoder.token_embedding.weight.detach()
    (token,) = tokenizer.encode("a").ids
    others = [other for other in range(tokenizer.num_pieces) if other != token and not tokenizer.is_special[other]]
    cosine = {other: float(functional.cosine_similarity(table[token], table[other], dim=0)) for other in others}
    best = sorted(cosine, key=lambda other: -cosine[other])[:4]
    found = loaded.nearest("a", 4)
    assert [piece for piece, _ in found] == [tokenizer.piece(other) for other in best]
    assert [value for _, value in found] == pytest.approx([cosine[other] for other in best], abs=1e-6)
    assert len(loaded.nearest("a", 10_000)) == len(others)
    with refuses(ConfigError, "''"):
        loaded.nearest("")


def test_what_a_loaded_run_refuses(world: Path) -> None:
    with refuses(RunDirectoryError, "runs/nothing"):
        load("runs/nothing")
    with refuses(ConfigError, "runs/pretrain/base"):
        load("runs/pretrain/base").predict("a text")
    with refuses(DataError, "[MASK]"):
        load("runs/pretrain/masked").predict("no mask")
    with refuses(DataError, "''"):
        load("runs/finetune/toy").predict("")
    with pytest.warns(UserWarning, match="max_length"):
        load("runs/finetune/toy").predict("good " * 100)


def test_loading_computes_in_float32_and_leaves_the_threads_alone(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(made)
    monkeypatch.setattr(hardware, "fastest_precision", lambda device: precision.PrecisionChoice("bf16", "for a test"))
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        run = load("runs/pretrain/masked")
        run.predict("a [MASK] day")
        vectors = run.vectors(["a day", "a night"])
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)
    fast = load("runs/pretrain/masked", precision="auto").vectors(["a day", "a night"])
    exact = load("runs/pretrain/masked", precision="fp32").vectors(["a day", "a night"])
    assert np.array_equal(vectors, exact)
    assert not np.array_equal(fast, exact)


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda run: load(run, precision="fp8"), ["precision='fp8'", "bf16"]),
        (lambda run: load(run).vectors(None), ["texts=None"]),
        (lambda run: load(run).nearest("the", -1), ["num=-1"]),
        (lambda run: predict(run=run, text="a", config_dir=3), ["config_dir=3"]),
    ],
)
def test_a_wrong_argument_is_named_before_any_work(call: Any, names: list[str], made: Path) -> None:
    with refuses(ConfigError, *names):
        call(str(made / "runs/pretrain/masked"))


VALUES = [
    None,
    True,
    False,
    0,
    -3,
    1e-5,
    float("inf"),
    "",
    "bert_tiny",
    "my/texts",
    "null",
    "True",
    "1",
    "1e3",
    'a, b [c] {d: e} = ${oc.env:HOME} it\'s "quoted" \\ #',
    "runs/pretrain/imdb/objective.mask_prob=0.15",
    "ein Stück\nweiter",
    ["a b", 1, None, ["x,y"]],
    {"a": 1, "b": ["x y", {"c": "null"}]},
]


def test_hydra_reads_the_value_that_was_given() -> None:
    for value in VALUES:
        read = OverridesParser.create().parse_override(f"key={format_value(value, 'key')}").value()
        plain: Any = OmegaConf.to_container(OmegaConf.create({"key": read}), resolve=True)
        assert (plain["key"], type(plain["key"])) == (value, type(value))


def test_numbers_of_numpy_and_paths_are_numbers_and_text() -> None:
    assert format_value(np.int64(7), "key") == "7"
    assert float(format_value(np.float32(0.5), "key")) == 0.5
    assert format_value(Path("runs/a"), "key") == format_value(Run(Path("runs/a")), "key") == "runs/a"
    assert math.isnan(float(format_value(float("nan"), "key")))


def test_strings_are_words_and_keywords_are_keys() -> None:
    line = command_line(
        ["corpus=text", "corpus.path=my/texts"],
        {"name": "mine", "train": {"steps": 3, "seconds": None}},
        config_dir="conf",
    )
    assert line.overrides == ["corpus=text", "corpus.path=my/texts", "name=mine", "train.steps=3", "train.seconds=null"]
    assert line.config_dir == "conf"
    assert command_line(["runs/a"], {}, config_dir=None).bare == ["runs/a"]
    assert command_line([Path("runs/mask_prob=0.4")], {}, config_dir=None).bare == ["runs/mask_prob=0.4"]


def test_mistakes_name_the_key() -> None:
    with refuses(ConfigError, "name"):
        command_line(["name=a"], {"name": "b"}, config_dir=None)
    with refuses(ConfigError, "train.steps"):
        command_line(["train.steps=1"], {"train": {"steps": 2}}, config_dir=None)
    with refuses(ConfigError, "model.dim", "object"):
        command_line([], {"model": {"dim": object()}}, config_dir=None)
    with refuses(ConfigError, "3"):
        command_line([3], {}, config_dir=None)  # type: ignore[list-item]


@check_arguments
def call(
    texts: str | Sequence[str], *, top_k: TopK = 5, precision: Literal["fp32", "bf16"] = "fp32", trust: bool = False
) -> int:
    return len(texts)


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ({"texts": b"bytes"}, ["texts=b'bytes'"]),
        ({"texts": ["a", None]}, ["texts[1]=None", "text"]),
        ({"texts": {"a": "b"}}, ["texts={'a': 'b'}"]),
        ({"texts": "a", "top_k": 2.5}, ["top_k=2.5", "integer"]),
        ({"texts": "a", "top_k": 0}, ["top_k=0", "1 or more"]),
        ({"texts": 3, "trust": "yes"}, ["texts=3", "trust='yes'", "true or false"]),
    ],
)
def test_an_argument_that_does_not_fit_its_annotation_is_named(arguments: dict[str, Any], names: list[str]) -> None:
    with refuses(ConfigError, *names):
        call(**arguments)


def test_texts_are_one_text_or_any_list_of_them() -> None:
    for texts in ("ab", ["a", "b"], ("a", "b"), np.array(["a", "b"])):
        assert call(texts, top_k=np.int64(3)) == 2  # type: ignore[arg-type]
