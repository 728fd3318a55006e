"""Write a run as a folder that transformers or sentence-transformers loads, or as ONNX, and check it."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from lmtransfer.config.check import check
from lmtransfer.errors import ConfigError
from lmtransfer.exporting.card import card_of
from lmtransfer.exporting.forms import ADAPTER, FORMS, adapter_form, fitting_texts
from lmtransfer.exporting.model_card import write_card
from lmtransfer.exporting.place import export_folder
from lmtransfer.exporting.run import OpenRun, open_run
from lmtransfer.exporting.texts import texts_of
from lmtransfer.reporting.runs.collect import collect
from lmtransfer.system import ranks
from lmtransfer.system.console import Console
from lmtransfer.system.printable import short_path

#: The format that holds how texts become vectors.
_OF_VECTORS = "sentence_transformers"
#: The library that loads a format, for formats of one library.
_LIBRARIES = {"onnx": "onnx", ADAPTER: "peft", _OF_VECTORS: "sentence-transformers"}


def run(cfg: DictConfig) -> Path:
    """Write the folder.

    Returns:
        The folder.

    Raises:
        ConfigError: the settings contradict each other, or the folder exists already.
        RunDirectoryError: there is no such run, or it has no model.
        CheckpointError: the format cannot hold the run's model, or the export does not reproduce the run.
    """
    check(cfg, primary="export")
    _check_choices(cfg)
    console = Console(highlight=False)
    others = [] if cfg.results is None else collect(Path(str(cfg.results)).expanduser())
    opened = open_run(str(cfg.run), checkpoint=cfg.checkpoint)
    folder, form = _place(cfg, opened)
    texts = fitting_texts(opened, texts_of(opened, data_root=cfg.data_root))
    source = opened.saved.config.get("source")
    with export_folder(folder, overwrite=cfg.overwrite, source=Path(str(source)) if source else None) as staged:
        if form == ADAPTER:
            exported = adapter_form(opened, staged, texts, base=cfg.base, named=str(cfg.to))
        else:
            vectors = {"pooling": cfg.pooling, "normalise": cfg.normalise} if form == _OF_VECTORS else {}
            exported = FORMS[form](opened, staged, texts, **vectors)
        card = card_of(
            opened,
            folder=folder,
            library=_LIBRARIES.get(form) or ("transformers" if exported.architecture else "lmtransfer"),
            architecture=exported.architecture,
            notes=exported.notes,
            name=cfg.name,
            license=cfg.license,
            languages=_languages(cfg),
            others=others,
            checked_with=exported.checked_with,
            base=cfg.base,
        )
        (staged / "README.md").write_text(write_card(card), encoding="utf-8")
        written = sorted(path.relative_to(staged).as_posix() for path in staged.rglob("*") if path.is_file())
    for note in exported.notes:
        console.print(f"note: {note}", markup=False, soft_wrap=True)
    for line in exported.checked:
        console.print(line, markup=False, soft_wrap=True)
    what = exported.architecture or ("ONNX" if form == "onnx" else "tensors, described in layout.json")
    what = f"an adapter for {what}" if form == ADAPTER else what
    console.print(f"exported {short_path(opened.checkpoint)} as {what}", markup=False, soft_wrap=True)
    console.print(f"written to {short_path(folder)}: {', '.join(written)}", markup=False, soft_wrap=True)
    return folder


def _place(cfg: DictConfig, opened: OpenRun) -> tuple[Path, str]:
    """The folder of the export, and its format."""
    if str(cfg.to) == "onnx":
        return opened.named / "onnx", "onnx"
    return Path(str(cfg.to)).expanduser().resolve(), str(cfg.format)


def _languages(cfg: DictConfig) -> list[str]:
    given = cfg.language if OmegaConf.is_list(cfg.language) else [cfg.language]
    return [language for language in given if language is not None]


def _check_choices(cfg: DictConfig) -> None:
    """Check everything that the settings alone can show.

    Raises:
        ConfigError: lists all problems.
    """
    problems = []
    if cfg.format not in (*FORMS, ADAPTER):
        problems.append(f"format={cfg.format}: must be one of {', '.join((*FORMS, ADAPTER))}")
    if cfg.base is not None and cfg.format != ADAPTER:
        problems.append(f"base={cfg.base}: only format=adapter has a base; leave base out, or choose that format")
    if cfg.base is not None and not Path(str(cfg.base)).expanduser().is_dir():
        problems.append(f"base={cfg.base}: no such folder; give the folder of the exported base, or leave it out")
    if cfg.checkpoint not in (None, "best", "last"):
        problems.append(f"checkpoint={cfg.checkpoint}: must be best, last or null")
    if str(cfg.to) == "onnx" and cfg.format not in ("auto", "onnx"):
        problems.append(
            f"format={cfg.format}: to=onnx always writes ONNX; leave format out, or give a folder, such as to=./onnx"
        )
    if cfg.format != _OF_VECTORS:
        problems += [
            f"{given}: only format={_OF_VECTORS} holds how texts become vectors; set that format, or leave it out"
            for key, given in (("pooling", f"pooling={cfg.pooling}"), ("normalise", "normalise=true"))
            if cfg[key]
        ]
    if cfg.license is not None and not isinstance(cfg.license, str):
        problems.append(f"license={cfg.license}: give an identifier such as apache-2.0")
    if not all(isinstance(language, str) for language in _languages(cfg)):
        problems.append(f"language={cfg.language}: give a code such as en, or several: [en,de]")
    if cfg.results is not None and not Path(str(cfg.results)).expanduser().is_dir():
        problems.append(f"results={cfg.results}: no such folder; give the folder that holds your runs, such as runs/")
    if ranks.world_size() > 1:
        problems.append("export runs in one process: start it without torchrun")
    if problems:
        raise ConfigError(problems)
