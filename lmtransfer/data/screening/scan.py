"""A single pass over a corpus that finds near-duplicates and evaluation texts, with nearly constant memory use.

Broder 1997, "On the resemblance and containment of documents"; the banding is described in chapter 3 of Leskovec,
Rajaraman and Ullman, "Mining of Massive Datasets". The signatures are those of the library datasketch. Its index keeps
Python objects for each document in memory; here shingles and bands are in files. Memory holds a few numbers per
document, and the bands of documents that share one with another document.
"""

from __future__ import annotations

import json
import shutil
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lmtransfer.data.documents import Corpus
from lmtransfer.data.screening.evaluation_texts import EvaluationTexts
from lmtransfer.data.screening.findings import Findings, Overlap, list_path
from lmtransfer.data.screening.shingles import jaccard, shingles, word_hashes
from lmtransfer.errors import ConfigError
from lmtransfer.system.optional import import_optional

#: Length of a signature.
_NUM_PERMUTATIONS = 128
#: Minimum probability of proposing a pair exactly at the threshold; a more similar pair has a higher probability.
_LEAST_RECALL = 0.99
_SEED = 1

#: Number of characters of a text that the list shows.
_SHOWN = 80
#: Number of lines of the list that the findings repeat.
_EXAMPLES = 5


@dataclass(frozen=True, slots=True)
class NearDuplicate:
    """A near-duplicate of an earlier document.

    Attributes:
        document: index of the document.
        original: index of the earlier document.
        similarity: exact Jaccard similarity of their shingles, 0 to 1.
    """

    document: int
    original: int
    similarity: float


def banding(threshold: float) -> tuple[int, int]:
    """Return the number of bands and values per band: the longest bands that find enough pairs at the threshold.

    A pair with similarity s agrees in at least one of b bands of r values with probability 1 - (1 - s^r)^b.

    Args:
        threshold: the Jaccard similarity, above 0 to 1.
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
        threshold: minimum Jaccard similarity of near-duplicates, above 0 to 1.

    Raises:
        ConfigError: the package datasketch is not installed.
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
        """Add the next document.

        Args:
            shingles: the document's shingles, sorted uint64, without duplicates.
            skipped: whether the document matches for another reason; it then neither is a near-duplicate nor has
                near-duplicates.
        """
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

    A document that contains an evaluation text is not compared with other documents, so that they are not dropped for
    being similar to it.

    Args:
        corpus: the documents; read once.
        folder: destination of the findings and, temporarily, of the shingles, 8 bytes per word of the corpus.
        min_jaccard: minimum Jaccard similarity of near-duplicates; None to skip the search for them.
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
    """Yield a line for each matching document, in order; the text of an earlier document is looked up first."""
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
