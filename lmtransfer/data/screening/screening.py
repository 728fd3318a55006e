"""The screening of a corpus: what to search for, and the corpus without the matching documents."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Literal

from typing_extensions import override

from lmtransfer.config.types import Folder, NgramWords, PositiveProb
from lmtransfer.data.documents import Corpus, Document
from lmtransfer.data.screening.evaluation_texts import EvaluationTexts
from lmtransfer.data.screening.findings import Findings, matching_documents
from lmtransfer.data.screening.scan import scan
from lmtransfer.data.store.cache import lock_folder
from lmtransfer.errors import ConfigError
from lmtransfer.system.cache_dir import default_cache_dir
from lmtransfer.system.durable import staged_folder

#: Increase when the same text and settings would produce different findings.
_VERSION = 1


class Screening:
    """Settings of a screening: near-duplicates and evaluation texts, reported or dropped.

    Args:
        action: ``report``: the corpus is unchanged; ``drop``: the matching documents are left out.
        min_jaccard: two documents are near-duplicates if the Jaccard similarity of their shingles is at least this,
            above 0 to 1; the later one matches. None to skip the search for near-duplicates.
        shingle_words: words of a shingle.
        overlap_with: evaluation texts by the name of their set; a document that contains one of them matches.
        ngram_words: words of the n-grams by which evaluation texts are found; shorter texts are not searched for.
        min_overlap: share of a text's n-grams that the document must have, above 0 to 1.
        cache_dir: folder of the cache for the findings; None for ``default_cache_dir``.

    Raises:
        ConfigError: there is nothing to search for.
    """

    def __init__(
        self,
        *,
        action: Literal["report", "drop"],
        min_jaccard: PositiveProb | None = 0.8,
        shingle_words: NgramWords = 5,
        overlap_with: Mapping[str, Sequence[str]] | None = None,
        ngram_words: NgramWords = 8,
        min_overlap: PositiveProb = 0.7,
        cache_dir: Folder | Path | None = None,
    ) -> None:
        if min_jaccard is None and not overlap_with:
            raise ConfigError(
                "screening.min_jaccard=null: without near-duplicates, name evaluation texts to search for, such as "
                "screening.overlap_with=[sst2]"
            )
        self.action = action
        self.min_jaccard, self.shingle_words = min_jaccard, shingle_words
        self.texts = dict(overlap_with or {})
        self.ngram_words, self.min_overlap = ngram_words, min_overlap
        self.folder = (default_cache_dir() if cache_dir is None else Path(cache_dir)) / "screening"

    @cached_property
    def fingerprint(self) -> str:
        """Hex digest of everything that determines the matching documents of a corpus."""
        settings = {
            "version": _VERSION,
            "min_jaccard": self.min_jaccard,
            "shingle_words": self.shingle_words,
            "texts": {name: list(texts) for name, texts in self.texts.items()},
            "ngram_words": self.ngram_words,
            "min_overlap": self.min_overlap,
        }
        return blake2b(json.dumps(settings, sort_keys=True).encode(), digest_size=16).hexdigest()

    def scan(self, corpus: Corpus, folder: Path) -> None:
        """Write the findings in a corpus to ``folder``."""
        evaluation = EvaluationTexts(self.texts, ngram_words=self.ngram_words, min_overlap=self.min_overlap)
        scan(corpus, folder, min_jaccard=self.min_jaccard, shingle_words=self.shingle_words, evaluation=evaluation)


class ScreenedCorpus(Corpus):
    """A corpus with a screening; with ``drop``, without the matching documents.

    The split is unchanged: a remaining document is in the same part as without the screening.

    Args:
        source: the corpus.
        screening: what to search for.
    """

    def __init__(self, source: Corpus, screening: Screening) -> None:
        self.source, self.screening = source, screening
        self.name, self.files, self.notes = source.name, source.files, source.notes

    @cached_property
    def findings(self) -> Findings:
        """The findings, computed now or read from the cache."""
        return Findings.read(self.findings_folder)

    @cached_property
    def findings_folder(self) -> Path:
        """The folder with the findings; the corpus is screened if it does not exist."""
        key = blake2b(f"{self.source.fingerprint()} {self.screening.fingerprint}".encode(), digest_size=10).hexdigest()
        folder = self.screening.folder / key
        with lock_folder(folder):
            if not folder.is_dir():
                with staged_folder(folder) as staged:
                    self.screening.scan(self.source, staged)
        return folder

    @override
    def documents(self) -> Iterator[Document]:
        if self.screening.action == "report":
            yield from self.source.documents()
            return
        dropped = set(matching_documents(self.findings_folder).tolist())
        for number, document in enumerate(self.source.documents()):
            if number in dropped:
                self.notes.add("documents left out by screening", document.key)
            else:
                yield document

    @override
    def is_validation(self, document: Document) -> bool:
        return self.source.is_validation(document)

    def fingerprint(self) -> str:
        """Return a hex digest of the documents' content; with ``report``, that of the source, whose cache it shares."""
        if self.screening.action == "report":
            return self.source.fingerprint()
        settings = json.dumps(["screened", self.source.fingerprint(), self.screening.fingerprint])
        return blake2b(settings.encode(), digest_size=16).hexdigest()

    @property
    @override
    def commit(self) -> str | None:
        return self.source.commit

    @override
    def fraction_read(self) -> float | None:
        return self.source.fraction_read()
