"""One pass over a corpus that finds near-duplicates and evaluation texts; memory hardly grows with the corpus."""

from __future__ import annotations

import json
import shutil
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from lmtransfer.data.documents import Corpus
from lmtransfer.data.screening.evaluation_texts import EvaluationTexts
from lmtransfer.data.screening.findings import Findings, Overlap, list_path
from lmtransfer.data.screening.near_duplicates import NearDuplicate, NearDuplicates
from lmtransfer.data.screening.shingles import shingles, word_hashes

#: Characters of a text that the list shows.
_SHOWN = 80
#: Lines of the list that the findings repeat.
_EXAMPLES = 5


def scan(
    corpus: Corpus,
    folder: Path,
    *,
    min_jaccard: float | None,
    shingle_words: int,
    evaluation: EvaluationTexts,
) -> None:
    """Screen a corpus and write the findings to ``folder``.

    A document that holds an evaluation text is not compared with others, so that its near-duplicates are found for a
    reason of their own.

    Args:
        corpus: the documents; read once.
        folder: where the findings go; on the way also the shingles, 8 bytes for each word of the corpus.
        min_jaccard: lowest Jaccard similarity of near-duplicates; None: they are not searched for.
        shingle_words: words of a shingle.
        evaluation: the evaluation texts.
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
    with (spool / "documents.jsonl").open("w", encoding="utf-8") as listed:
        for number, document in enumerate(corpus.documents()):
            hashes = word_hashes(document.text)
            held = evaluation.found_in(shingles(hashes, evaluation.ngram_words))
            for name in {name for name, _ in held}:
                findings.overlaps[name].documents += 1
            for name, text in held:
                seen[name].add(text)
            if held:
                overlapping.append(number)
            if near is not None:
                near.add(shingles(hashes, shingle_words), skipped=bool(held))
            held_out.append(corpus.is_validation(document))
            words.append(len(hashes))
            line: dict[str, Any] = {"key": document.key, "text": document.text[:_SHOWN]}
            if held:
                line["holds"] = [{"set": name, "text": text[:_SHOWN]} for name, text in held]
            listed.write(json.dumps(line) + "\n")
    found: dict[int, NearDuplicate | None] = dict.fromkeys(overlapping)
    for pair in () if near is None else near.find():
        found[pair.document] = pair
        findings.near_duplicates += 1
        findings.same_shingles += pair.similarity == 1
        findings.across_split += held_out[pair.document] != held_out[pair.of]
    for name, texts in seen.items():
        findings.overlaps[name].found = len(texts)
    findings.documents, findings.overlapping = len(words), len(overlapping)
    findings.words, findings.found_words = sum(words), sum(words[number] for number in found)
    with list_path(folder).open("w", encoding="utf-8") as file:
        for line in _lines(spool / "documents.jsonl", found):
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
            if len(findings.examples) < _EXAMPLES:
                findings.examples.append(line)
    findings.write(folder, np.array(sorted(found), dtype=np.int64))
    shutil.rmtree(spool)


def _lines(documents: Path, found: dict[int, NearDuplicate | None]) -> Iterator[dict[str, Any]]:
    """A line for each document that was found, in order; the text of an earlier document is looked up first."""
    wanted = {pair.of for pair in found.values() if pair is not None}
    keys: dict[int, str] = {}
    with documents.open(encoding="utf-8") as lines:
        for number, raw in enumerate(lines):
            if number in wanted:
                keys[number] = json.loads(raw)["key"]
            if number in found:
                pair, line = found[number], json.loads(raw)
                if pair is not None:
                    line |= {"near_duplicate_of": keys[pair.of], "jaccard": round(pair.similarity, 4)}
                yield line
