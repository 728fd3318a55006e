"""Train a tokenizer on a corpus, tokenise the corpus, and print its statistics."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig

from lmtransfer.config.check import check
from lmtransfer.config.component import build
from lmtransfer.config.in_short import expand_overlap, expand_parts
from lmtransfer.data.store.cache import prepare, tokenizer_for
from lmtransfer.inference.inspection.tables import parts_table
from lmtransfer.pretraining.preparing import preparing_line, remarks_on, statistics_table
from lmtransfer.pretraining.screening import examples_of, findings_table, screened_parts
from lmtransfer.pretraining.text import build_corpus
from lmtransfer.system.cache_dir import default_cache_dir
from lmtransfer.system.console import Console


def run(cfg: DictConfig) -> None:
    """Prepare the corpus of a config and print its statistics.

    Raises:
        ConfigError: lists every problem of the config.
        DataError: a corpus is missing, empty, or cannot be read.
    """
    expand_parts(cfg)
    expand_overlap(cfg)
    nodes: dict[str, set[str]] = {"corpus": {"data_root", "cache_dir"}, "tokenizer": set()}
    if cfg.screening is not None:
        nodes["screening"] = {"overlap_with", "cache_dir"}
    check(cfg, primary="prepare", nodes=nodes)
    console = Console(highlight=False)
    cache_dir = default_cache_dir() if cfg.cache_dir is None else Path(cfg.cache_dir).expanduser().absolute()
    corpus = build_corpus(cfg, cache_dir=cache_dir)
    trainer = build(cfg.tokenizer)
    for name, part in screened_parts(corpus).items():
        with console.status(f"screening {name}"):
            table = findings_table(name, part)
        console.print(table)
        for line in examples_of(part):
            console.print(line, soft_wrap=True)
    with console.status(f"tokenizer for {corpus.name}"):
        tokenizer = tokenizer_for(corpus, trainer, cache_dir=cache_dir)
    with preparing_line(console, corpus.name) as on_progress:
        prepared = prepare(corpus, tokenizer, cache_dir=cache_dir, num_workers=cfg.num_workers, on_progress=on_progress)
    console.print(statistics_table(corpus.name, prepared, tokenizer))
    parts = parts_table(prepared, tokenizer)
    if parts is not None:
        console.print(parts)
    for line in remarks_on(prepared, tokenizer):
        console.print(line, soft_wrap=True)
    console.print(f"\nkept in {prepared.folder}", soft_wrap=True)
    console.print("next: lmtransfer pretrain with the same corpus and tokenizer settings", soft_wrap=True)
