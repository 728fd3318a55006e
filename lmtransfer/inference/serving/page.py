"""The page: a form, and the answer to its input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmtransfer.inference.serving.served import Served
from lmtransfer.reporting.page.document import document
from lmtransfer.reporting.page.tagged import label_colors

_TEMPLATES = Path(__file__).parent / "templates"
#: Maximum number of words listed with their effects below a text.
_MAX_LISTED = 5
#: Words with an effect below this share of the largest effect are not marked.
_WEAK = 0.05


def render_page(
    served: Served,
    max_bytes: int,
    entries: Mapping[str, str] | None = None,
    *,
    answer: Mapping[str, Any] | None = None,
    problem: str | None = None,
) -> str:
    """Render the page as HTML; everything in it is escaped.

    Args:
        max_bytes: maximum size of a request.
        entries: the user's input, by field.
        answer: the answer to the input, as in JSON.
        problem: why there is no answer.
    """
    model, task = served.saved.config["model"], served.saved.config.get("task") or {}
    return document(
        "served.html.j2",
        title=served.name,
        folder=_TEMPLATES,
        served=served,
        encoder=str(model.get("_target_")).rpartition(".")[2],
        task=task.get("name"),
        max_bytes=max_bytes,
        entries=entries or {},
        problem=problem,
        answer=answer,
        evidence=None if answer is None else _evidence(answer),
        colors=dict(zip(served.labels, label_colors(served.labels), strict=True)),
    )


@dataclass(frozen=True, slots=True)
class TextPart:
    """A part of a text.

    Attributes:
        text: the part.
        effect: effect of the word on the answer; None between words.
        share: size of the effect relative to the largest effect, 0 to 1.
    """

    text: str
    effect: float | None = None
    share: float = 0.0

    @property
    def side(self) -> str:
        """Whether the word is evidence ``for`` the answer, ``against`` it, or neither (``weak``)."""
        if self.effect is None or self.share < _WEAK:
            return "weak"
        return "for" if self.effect > 0 else "against"


@dataclass(frozen=True, slots=True)
class Evidence:
    """The evidence of all words.

    Attributes:
        texts: the parts of each text.
        top_words: the words with the largest effects, largest first.
    """

    texts: tuple[tuple[TextPart, ...], ...]
    top_words: tuple[TextPart, ...]


def _evidence(answer: Mapping[str, Any]) -> Evidence | None:
    """Collect the texts with the effects of their words; None if the answer has no evidence."""
    if not answer.get("evidence"):
        return None
    words = answer["evidence"]["words"]
    largest = max((abs(word["effect"]) for word in words), default=0.0) or 1.0
    texts = []
    for field in ("text", "text_pair"):
        text, parts, place = answer.get(field), [], 0
        if text is None:
            continue
        for word in words:
            if word["field"] == field:
                parts.append(TextPart(text[place : word["start"]]))
                parts.append(TextPart(word["word"], word["effect"], abs(word["effect"]) / largest))
                place = word["end"]
        texts.append((*parts, TextPart(text[place:])))
    words_with_effect = [part for parts in texts for part in parts if part.side != "weak"]
    top_words = sorted(words_with_effect, key=lambda part: -part.share)[:_MAX_LISTED]
    return Evidence(tuple(texts), tuple(top_words))
