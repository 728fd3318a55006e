"""Screens a corpus for near-duplicates and evaluation texts, and provides the corpus without the matching documents."""

from __future__ import annotations

import json
import re
import shutil
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import TypeAdapter
from typing_extensions import override

from lmtransfer.config.types import Folder, NgramWords, PositiveProb
from lmtransfer.data.corpora.corpus import text_hash
from lmtransfer.data.documents import Corpus, Document, Notes
from lmtransfer.data.token_cache import make_once
from lmtransfer.errors import ConfigError
from lmtransfer.system.durable import staged_folder, write_json
from lmtransfer.system.machine import default_cache_dir
from lmtransfer.system.optional import import_optional

_WORD = re.compile(r"\w+")
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(32)
#: Length of a signature.
_NUM_PERMUTATIONS = 128
#: Minimum probability of proposing a pair exactly at the threshold; a more similar pair has a higher probability.
_LEAST_RECALL = 0.99
_SEED = 1
#: Number of characters of a text that the list shows.
_SHOWN = 80
#: Number of lines of the list that the findings repeat.
_EXAMPLES = 5
#: Increase when the same text and settings would produce different findings.
_VERSION = 1


@lru_cache(maxsize=1 << 18)
def _word_hash(word: str) -> int:
    return text_hash(word)


def word_hashes(text: str) -> np.ndarray:
    """Return the hash of each word of a text, uint64, shape (words,).

    A word is a case-insensitive sequence of letters, digits and underscores. Punctuation and line ends are ignored. (A
    language without spaces has very long words, so only copies of whole clauses are found in it.)
    """
    words = _WORD.findall(text.casefold())
    return np.fromiter(map(_word_hash, words), dtype=np.uint64, count=len(words))


def shingles(hashes: np.ndarray, num_words: int) -> np.ndarray:
    """Return the distinct sequences of ``num_words`` words as sorted 64-bit hashes; a shorter text is one shingle."""
    length = min(num_words, len(hashes))
    if length == 0:
        return hashes
    mixed = np.full(len(hashes) - length + 1, length, dtype=np.uint64)
    for place in range(length):
        mixed = (mixed ^ hashes[place : place + len(mixed)]) * _MULTIPLIER
        mixed ^= mixed >> _SHIFT
    return np.unique(mixed)


def jaccard(first: np.ndarray, second: np.ndarray) -> float:
    """Return the Jaccard similarity of two sets (intersection by union), each sorted and without duplicates."""
    common = len(np.intersect1d(first, second, assume_unique=True))
    return common / (len(first) + len(second) - common) if common else 0.0


class EvaluationTexts:
    """An index of evaluation texts by their n-grams, given the texts of each set, such as ``sst2 dev``.

    A document contains a text if it has at least the share ``min_overlap`` of the text's n-grams. (PaLM calls an
    example contaminated if at least 70 % of its 8-grams are in the training data: Chowdhery et al. 2022,
    arXiv:2204.02311, section 8. There the n-grams may come from different documents; here they must be in one.) Texts
    with fewer than ``ngram_words`` words are not searched for, because they can occur by chance.
    """

    def __init__(self, texts: Mapping[str, Sequence[str]], *, ngram_words: int, min_overlap: float) -> None:
        self.ngram_words = ngram_words
        self.num_texts: dict[str, int] = {}
        self.num_searched: dict[str, int] = {}
        self._texts: list[tuple[str, str]] = []
        grams: list[np.ndarray] = []
        for name, set_texts in texts.items():
            distinct = list(dict.fromkeys(set_texts))
            hashes = [word_hashes(text) for text in distinct]
            long = [place for place, words in enumerate(hashes) if len(words) >= ngram_words]
            self.num_texts[name], self.num_searched[name] = len(distinct), len(long)
            self._texts += [(name, distinct[place]) for place in long]
            grams += [shingles(hashes[place], ngram_words) for place in long]
        sizes = np.array([len(text_grams) for text_grams in grams], dtype=np.int64)
        self._needed = np.maximum(np.ceil(sizes * min_overlap - 1e-9), 1)
        flat = np.concatenate([np.zeros(0, dtype=np.uint64), *grams])
        order = np.argsort(flat, kind="stable")
        self._grams, self._starts = np.unique(flat[order], return_index=True)
        self._ends = np.append(self._starts[1:], len(flat))
        self._owners = np.repeat(np.arange(len(grams)), sizes)[order]

    def find_in(self, grams: np.ndarray) -> list[tuple[str, str]]:
        """Return the evaluation texts in a document with these n-grams (sorted, distinct), as pairs of set and text."""
        if not len(self._grams) or not len(grams):
            return []
        places = np.minimum(np.searchsorted(self._grams, grams), len(self._grams) - 1)
        places = places[self._grams[places] == grams]
        if not len(places):
            return []
        owners = np.concatenate([self._owners[self._starts[place] : self._ends[place]] for place in places])
        indices, counts = np.unique(owners, return_counts=True)
        return [self._texts[owner] for owner in indices[counts >= self._needed[indices]].tolist()]


@dataclass(slots=True)
class Overlap:
    """Counts for an evaluation set: distinct texts, texts searched for, texts found, and documents that contain any."""

    texts: int
    searched: int
    found: int = 0
    documents: int = 0


@dataclass(slots=True)
class Findings:
    """The result of a screening; ``same_shingles`` and ``across_split`` count some of the near-duplicates."""

    documents: int = 0
    near_duplicates: int = 0
    same_shingles: int = 0
    across_split: int = 0
    overlapping: int = 0
    found_words: int = 0
    words: int = 0
    overlaps: dict[str, Overlap] = field(default_factory=dict)
    examples: list[dict[str, Any]] = field(default_factory=list)

    @property
    def num_matches(self) -> int:
        """Number of documents that ``drop`` removes."""
        return self.near_duplicates + self.overlapping

    def write(self, folder: Path, documents: np.ndarray) -> None:
        """Write the counts and the indices of the matching documents."""
        np.save(folder / "found.npy", documents)
        write_json(folder / "findings.json", asdict(self))

    @classmethod
    def read(cls, folder: Path) -> Findings:
        """Read the counts."""
        return TypeAdapter(Findings).validate_json((folder / "findings.json").read_bytes())


def matching_documents(folder: Path) -> np.ndarray:
    """Return the sorted indices of the matching documents, int64."""
    return np.load(folder / "found.npy", allow_pickle=False)


def list_path(folder: Path) -> Path:
    """Return the path of the list: JSON lines with key, text and reason of each match, in corpus order."""
    return folder / "found.jsonl"


@dataclass(frozen=True, slots=True)
class NearDuplicate:
    """A near-duplicate of an earlier document, and the exact Jaccard similarity of their shingles."""

    document: int
    original: int
    similarity: float


def banding(threshold: float) -> tuple[int, int]:
    """Return the number of bands and values per band: the longest bands that find enough pairs at the threshold.

    A pair with similarity s agrees in at least one of b bands of r values with probability 1 - (1 - s^r)^b.
    """
    for length in range(_NUM_PERMUTATIONS // 2, 1, -1):
        bands = _NUM_PERMUTATIONS // length
        if 1 - (1 - threshold**length) ** bands >= _LEAST_RECALL:
            return bands, length
    return _NUM_PERMUTATIONS, 1


class NearDuplicates:
    """A search for near-duplicates of earlier documents.

    A document is a near-duplicate if its similarity to an earlier document that is not itself a near-duplicate reaches
    the threshold. Thus the first document of each group of similar documents remains, and each near-duplicate has a
    similar document that remains.

    Args:
        folder: an empty folder for the shingles (8 bytes per word of the corpus) and the bands; the caller deletes it.
    """

    def __init__(self, folder: Path, *, threshold: float) -> None:
        self._minhash = import_optional("datasketch", work="screening.min_jaccard", error=ConfigError).MinHash
        self._empty = self._minhash(_NUM_PERMUTATIONS, seed=_SEED, hashfunc=int, scheme="affine32")
        self.threshold = threshold
        self._num_bands, self._band_length = banding(threshold)
        self._factors = np.random.Generator(np.random.PCG64(_SEED)).integers(
            1 << 63, size=self._band_length, dtype=np.uint64
        )
        self._paths = folder / "shingles.bin", folder / "bands.bin"
        self._shingles, self._bands = (path.open("wb") for path in self._paths)
        self._lengths = array("q")

    def add(self, shingles: np.ndarray, *, skipped: bool = False) -> None:
        """Add the next document's shingles (sorted, distinct); a skipped document is not compared with others."""
        self._lengths.append(0 if skipped else len(shingles))
        if not self._lengths[-1]:
            np.zeros(self._num_bands, dtype=np.uint64).tofile(self._bands)
            return
        shingles.tofile(self._shingles)
        signature = self._minhash(
            _NUM_PERMUTATIONS, seed=_SEED, hashfunc=int, permutations=self._empty.permutations, scheme="affine32"
        )
        signature.update_batch((shingles & np.uint64(0xFFFFFFFF)).tolist())
        values = signature.hashvalues[: self._num_bands * self._band_length].astype(np.uint64)
        (values.reshape(self._num_bands, -1) * self._factors).sum(axis=1, dtype=np.uint64).tofile(self._bands)

    def find(self) -> Iterator[NearDuplicate]:
        """Yield the near-duplicates among all documents, in order; no document can be added afterwards."""
        self._shingles.close()
        self._bands.close()
        starts = np.concatenate([[0], np.cumsum(self._lengths, dtype=np.int64)])
        if starts[-1] == 0:
            return
        all_shingles = np.memmap(self._paths[0], dtype=np.uint64, mode="r")
        remaining: dict[int, list[int]] = {}  # by bucket
        for document, buckets in self._proposals():
            own = np.asarray(all_shingles[starts[document] : starts[document + 1]])
            for other in sorted({place for bucket in buckets for place in remaining.get(bucket, ())}):
                sizes = sorted((len(own), self._lengths[other]))
                if sizes[0] < self.threshold * sizes[1]:
                    continue  # too different in size to be similar
                similarity = jaccard(own, np.asarray(all_shingles[starts[other] : starts[other + 1]]))
                if similarity >= self.threshold:
                    yield NearDuplicate(document, other, similarity)
                    break
            else:
                for bucket in buckets:
                    remaining.setdefault(bucket, []).append(document)

    def _proposals(self) -> Iterator[tuple[int, list[int]]]:
        """Yield the documents that share a band with another document, in order, with their bucket numbers."""
        table = np.memmap(self._paths[1], dtype=np.uint64, mode="r").reshape(-1, self._num_bands)
        places = np.flatnonzero(np.array(self._lengths))
        documents, buckets, num_buckets = [], [], 0
        for band in range(self._num_bands):
            _, inverse, counts = np.unique(table[places, band], return_inverse=True, return_counts=True)
            shared = counts[inverse] > 1
            documents.append(places[shared])
            buckets.append(inverse[shared] + num_buckets)
            num_buckets += len(counts)
        document_ids = np.concatenate(documents)
        order = np.argsort(document_ids, kind="stable")
        document_ids, bucket_ids = document_ids[order], np.concatenate(buckets)[order]
        edges = [0, *(np.flatnonzero(np.diff(document_ids)) + 1).tolist(), len(document_ids)]
        for first, last in zip(edges[:-1], edges[1:], strict=True):
            if last > first:
                yield int(document_ids[first]), bucket_ids[first:last].tolist()


def scan(
    corpus: Corpus,
    folder: Path,
    *,
    min_jaccard: float | None,
    shingle_words: int,
    evaluation: EvaluationTexts,
) -> None:
    """Screen a corpus and write the findings to ``folder``.

    A document that contains an evaluation text is not compared with other documents, so that none of them is dropped
    for being similar to it.
    """
    spool = folder / "spool"
    spool.mkdir()
    findings = Findings(
        overlaps={name: Overlap(n, evaluation.num_searched[name]) for name, n in evaluation.num_texts.items()}
    )
    near = None if min_jaccard is None else NearDuplicates(spool, threshold=min_jaccard)
    held_out, words = array("b"), array("l")
    seen: dict[str, set[str]] = {name: set() for name in findings.overlaps}
    overlapping = array("q")
    with (spool / "documents.jsonl").open("w", encoding="utf-8") as document_list:
        for number, document in enumerate(corpus.documents()):
            hashes = word_hashes(document.text)
            contained = evaluation.find_in(shingles(hashes, evaluation.ngram_words))
            for name in {name for name, _ in contained}:
                findings.overlaps[name].documents += 1
            for name, text in contained:
                seen[name].add(text)
            if contained:
                overlapping.append(number)
            if near is not None:
                near.add(shingles(hashes, shingle_words), skipped=bool(contained))
            held_out.append(corpus.is_validation(document))
            words.append(len(hashes))
            line: dict[str, Any] = {"key": document.key, "text": document.text[:_SHOWN]}
            if contained:
                line["holds"] = [{"set": name, "text": text[:_SHOWN]} for name, text in contained]
            document_list.write(json.dumps(line) + "\n")
    matches: dict[int, NearDuplicate | None] = dict.fromkeys(overlapping)
    for pair in () if near is None else near.find():
        matches[pair.document] = pair
        findings.near_duplicates += 1
        findings.same_shingles += pair.similarity == 1
        findings.across_split += held_out[pair.document] != held_out[pair.original]
    for name, texts in seen.items():
        findings.overlaps[name].found = len(texts)
    findings.documents, findings.overlapping = len(words), len(overlapping)
    findings.words, findings.found_words = sum(words), sum(words[number] for number in matches)
    with list_path(folder).open("w", encoding="utf-8") as file:
        for line in _lines(spool / "documents.jsonl", matches):
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
            if len(findings.examples) < _EXAMPLES:
                findings.examples.append(line)
    findings.write(folder, np.array(sorted(matches), dtype=np.int64))
    shutil.rmtree(spool)


def _lines(documents: Path, matches: dict[int, NearDuplicate | None]) -> Iterator[dict[str, Any]]:
    """Yield a line for each matching document, in corpus order."""
    originals = {pair.original for pair in matches.values() if pair is not None}
    keys: dict[int, str] = {}
    with documents.open(encoding="utf-8") as lines:
        for number, raw in enumerate(lines):
            if number in originals:
                keys[number] = json.loads(raw)["key"]
            if number in matches:
                pair, line = matches[number], json.loads(raw)
                if pair is not None:
                    line |= {"near_duplicate_of": keys[pair.original], "jaccard": round(pair.similarity, 4)}
                yield line


@dataclass(kw_only=True, eq=False)
class Screening:
    """Settings of a screening, which reports or drops near-duplicates and evaluation texts (keyed by set name).

    Args:
        action: report: list what was found; drop: also leave these documents out.
        min_jaccard: documents are near-duplicates if the Jaccard similarity of their shingles is at least this number,
            greater than 0 and at most 1; null: do not search.
        shingle_words: number of consecutive words in a shingle.
        overlap_with: [sst2, my/test.txt]: tasks, whose dev and test texts are searched for, and files with one text per
            line.
        ngram_words: number of consecutive words in the n-grams of evaluation texts; shorter texts are not searched for.
        min_overlap: a document contains a text if it has at least this share of the text's n-grams, greater than 0 and
            at most 1 (PaLM, arXiv:2204.02311, section 8).
    """

    action: Literal["report", "drop"]
    min_jaccard: PositiveProb | None = 0.8
    shingle_words: NgramWords = 5
    overlap_with: Mapping[str, Sequence[str]] | None = None
    ngram_words: NgramWords = 8
    min_overlap: PositiveProb = 0.7
    cache_dir: Folder | Path | None = None

    def __post_init__(self) -> None:
        if self.min_jaccard is None and not self.overlap_with:
            raise ConfigError(
                "screening.min_jaccard=null: without a search for near-duplicates, name evaluation texts to search "
                "for, such as screening.overlap_with=[sst2]"
            )
        self.texts = dict(self.overlap_with or {})

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
    """A corpus with a screening; ``drop`` leaves matching documents out and does not change the split."""

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
        parts = [self.source.fingerprint(), self.screening.fingerprint, *self.files]  # the findings name the files
        key = blake2b(json.dumps(parts).encode(), digest_size=10).hexdigest()
        cache_dir = default_cache_dir() if self.screening.cache_dir is None else Path(self.screening.cache_dir)
        folder = cache_dir / "screening" / key

        def make() -> None:
            with staged_folder(folder) as staged:
                self.screening.scan(self.source, staged)

        make_once(folder, make)
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
    def left_out(self) -> Notes:
        return self.source.left_out

    @property
    @override
    def commit(self) -> str | None:
        return self.source.commit

    @override
    def fraction_read(self) -> float | None:
        return self.source.fraction_read()
