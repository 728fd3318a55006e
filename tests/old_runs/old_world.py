"""The texts, the labelled files and the published model that old runs were made from: invented, and small."""

from __future__ import annotations

import json
import random
from pathlib import Path

KIND = ["good", "kind", "warm", "fair"]
UNKIND = ["bad", "rude", "cold", "grim"]
NAMES = ["Anna", "Boris", "Clara", "Dora Lind"]
THINGS = ["house", "boat", "garden", "tale", "song", "river"]
VERBS = ["saw", "made", "left", "found"]
SPLITS = {"train": 48, "dev": 20, "test": 16}
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def write_world(folder: Path) -> None:
    """Write all of it into ``folder``."""
    for seed, place in enumerate(("imdb_unsup", "multilingual/deu", "multilingual/fra", "own")):
        _write(folder / place / ("text.txt" if place == "own" else "train.txt"), _documents(60, seed))
    _write(folder / "own" / "words.txt", "lighthouse\nharbour\n")
    for seed, (split, num) in enumerate(SPLITS.items()):
        rng = random.Random(10 + seed)
        _write(folder / "data" / f"single_{split}.tsv", _table("text\tlabel", [_labelled(rng, i) for i in range(num)]))
        pairs = _table("text1\ttext2\tlabel", [_pair(rng, i) for i in range(num)])
        _write(folder / "data" / f"pairs_{split}.tsv", pairs)
        _write(folder / "data" / f"scores_{split}.csv", _table("text,score", [_scored(rng) for _ in range(num)]))
        _write(folder / "data" / f"tags_{split}.conll", "\n\n".join(_tagged(rng) for _ in range(num)) + "\n")
        _write(folder / "data" / f"questions_{split}.jsonl", "".join(_question(rng, i) for i in range(num)))
    for split, num in (("train", 24), ("dev", 12)):
        _write(folder / "coqa" / f"coqa-{split}-v1.0.json", _conversations(random.Random(num), num))
    rng = random.Random(20)
    for paradigm in ("order", "agreement"):
        _write(folder / "blimp" / f"{paradigm}.jsonl", "".join(_minimal_pair(rng, paradigm) for _ in range(12)))
    _write(folder / "masked.txt", "".join(f"{_with_mask(rng)}\n" for _ in range(4)))


def write_published(folder: Path) -> None:
    """A BERT of random weights as `transformers` saves it, with a vocabulary of whole words."""
    import torch
    import transformers

    words = [word.lower() for word in ["the", "a", "was", "in", ".", "Lind"] + KIND + UNKIND + THINGS + VERBS]
    words += [name.lower() for name in NAMES[:3]]
    pieces = [*SPECIALS, *words, *"abcdefghijklmnopqrstuvwxyz", *(f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz")]
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.BertConfig(**sizes, vocab_size=len(pieces), max_position_embeddings=32, initializer_range=0.5)
    transformers.BertForPreTraining(config).save_pretrained(folder)
    _write(folder / "vocab.txt", "\n".join(pieces) + "\n")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _table(head: str, rows: list[str]) -> str:
    return "\n".join([head, *rows]) + "\n"


def _sentence(rng: random.Random) -> str:
    thing = f"the {rng.choice(KIND + UNKIND)} {rng.choice(THINGS)}"
    middle = f"in the {rng.choice(THINGS)}" if rng.random() < 0.4 else "was there"
    who = f"{rng.choice(NAMES)} {rng.choice(VERBS)}"
    return rng.choice((f"{who} {thing}.", f"{thing} {middle} {who}."))


def _documents(num: int, seed: int) -> str:
    rng = random.Random(seed)
    return "\n\n".join("\n".join(_sentence(rng) for _ in range(rng.randint(3, 7))) for _ in range(num)) + "\n"


def _labelled(rng: random.Random, number: int) -> str:
    words = [rng.choice(THINGS), "was", rng.choice(KIND if number % 3 else UNKIND), rng.choice(NAMES)]
    rng.shuffle(words)
    return f"{' '.join(words)}\t{'pleased' if number % 3 else 'angry'}"


def _pair(rng: random.Random, number: int) -> str:
    return f"{rng.choice(NAMES)} {rng.choice(VERBS)}\tthe {rng.choice(KIND if number % 2 else UNKIND)} " + (
        f"{rng.choice(THINGS)}\t{'same' if number % 2 else 'other'}"
    )


def _scored(rng: random.Random) -> str:
    words = rng.choices(KIND[:2] + UNKIND[:2], k=4)
    return f"{' '.join(words)},{sum(word in KIND for word in words) / 4}"


def _tagged(rng: random.Random) -> str:
    lines = []
    for word in f"{_sentence(rng)[:-1]} {rng.choice(NAMES)}".split():
        starts = [name.split()[0] for name in NAMES]
        tag = "B-NAME" if word in starts else "I-NAME" if word == "Lind" else "O"
        lines.append(f"{word}\t{tag}")
    return "\n".join(lines)


def _question(rng: random.Random, number: int) -> str:
    words = rng.choices(THINGS + VERBS, k=rng.randint(3, 14))
    answers = []
    if number % 4:
        words.insert(rng.randint(0, len(words)), answer := rng.choice(KIND))
        answers = [{"text": answer, "start": " ".join(words).index(answer)}]
    row = {"id": f"q{number}", "question": "which one", "context": " ".join(words), "answers": answers}
    return json.dumps(row) + "\n"


def _conversations(rng: random.Random, num: int) -> str:
    """Stories of a sentence, with one question each: what is seen, whether it is there, or what nobody knows."""
    data = []
    for number in range(num):
        thing, kind = rng.choice(THINGS), rng.choice(KIND)
        story = f"Anna saw the {kind} {thing} and left"
        start = story.index(kind)
        answers = [(kind, start, kind), ("yes", 0, "Anna"), ("no", 0, "Anna"), ("unknown", -1, "unknown")]
        text, start, span = answers[number % 4]
        question = ("which one", "did Anna see it", "did Boris see it", "when was it")[number % 4]
        end = -1 if start < 0 else start + len(span)
        answer = {"span_start": start, "span_end": end, "span_text": span, "input_text": text, "turn_id": 1}
        turn = {"input_text": question, "turn_id": 1}
        data.append({"id": f"s{number}", "story": story, "source": "own", "questions": [turn], "answers": [answer]})
    return json.dumps({"version": "1.0", "data": data}) + "\n"


def _minimal_pair(rng: random.Random, paradigm: str) -> str:
    good = _sentence(rng)
    words = good[:-1].split()
    words[-2:] = reversed(words[-2:])
    row = {"sentence_good": good, "sentence_bad": f"{' '.join(words)}.", "UID": paradigm, "linguistics_term": "order"}
    return json.dumps(row) + "\n"


def _with_mask(rng: random.Random) -> str:
    words = _sentence(rng).split(" ")
    words[rng.randrange(len(words) - 1)] = "[MASK]"
    return " ".join(words)
