"""The parts of a mixture of corpora, which the command line may name in short."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict

from lmtransfer.config import paths, yaml_files
from lmtransfer.config.nearest import hint
from lmtransfer.errors import ConfigError


def settle_parts(cfg: DictConfig) -> None:
    """Put whole corpora where ``corpus.parts`` only names them.

    ``corpus.parts=[enwiki,fra]`` takes the corpora of those names, ``{english: enwiki, french: my/fr}`` gives them
    other names; a part that is no corpus's name is a file or a folder, and read as ``corpus=text`` would.

    Args:
        cfg: the composed configuration; changed in place. Without ``corpus.parts`` nothing happens.

    Raises:
        ConfigError: parts that are neither, all at once.
    """
    corpus = cfg.get("corpus")
    if not isinstance(corpus, DictConfig) or "parts" not in corpus or OmegaConf.is_missing(corpus, "parts"):
        return
    given = corpus.parts
    if isinstance(given, ListConfig):
        named: dict[str, Any] = {Path(str(part)).stem: part for part in given}
        if len(named) < len(given):
            raise ConfigError(
                f"corpus.parts={list(given)}: two parts have the same name; give them others: "
                "corpus.parts={one: ..., two: ...}"
            )
    elif isinstance(given, DictConfig):
        named = {str(name): given[name] for name in given}
    else:
        raise ConfigError(f"corpus.parts={given}: give a list such as [enwiki,fra], or {{name: corpus, ...}}")
    folders = [paths.conf_dir()]
    if HydraConfig.initialized():
        folders = paths.searched(HydraConfig.get().runtime.config_sources)
    problems: list[str] = []
    settled = {name: _settled(name, part, folders, problems) for name, part in named.items()}
    if problems:
        raise ConfigError(problems)
    with open_dict(corpus):
        corpus.parts = settled


def _settled(name: str, part: Any, folders: list[Path], problems: list[str]) -> Any:
    if isinstance(part, DictConfig):
        return part
    path = paths.find(f"corpus/{part}.yaml", folders)
    if path is not None:
        return yaml_files.load(path)
    if Path(str(part)).expanduser().exists():
        text = paths.find("corpus/text.yaml", folders)
        assert text is not None
        return OmegaConf.merge(yaml_files.load(text), {"name": name, "path": str(part)})
    known = hint(str(part), paths.group_options("corpus", folders), what="corpora")
    problems.append(f"corpus.parts.{name}={part}: is neither a corpus nor a file or folder; {known}")
    return None
