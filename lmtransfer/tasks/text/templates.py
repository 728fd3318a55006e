"""Classification of texts that templates build from the fields of JSON lines."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from typing_extensions import override

from lmtransfer.errors import ConfigError, DataError
from lmtransfer.tasks.file_formats.json_document import JsonNode
from lmtransfer.tasks.text.classification import Classification
from lmtransfer.tasks.text.example import TextExample
from lmtransfer.tasks.text.task import JsonLinesTask

_FIELD = re.compile(r"\{(\w+)\}")


class TemplateClassification(JsonLinesTask, Classification):
    """A classification task in JSON lines whose texts are templates, such as ``Question: {question}``.

    Raises:
        ConfigError: a template names no field.
    """

    class Settings(Classification.Settings, JsonLinesTask.Settings):
        """The settings of a classification of texts from templates.

        Attributes:
            text: template of the text, or of the first of a pair; ``{name}`` stands for a field of the JSON object.
            text_pair: template of the second text; null: single texts.
            labels: names of the labels; the field ``label`` is the index of one of them, from 0, or its name.
        """

        text: str
        text_pair: str | None = None
        labels: Sequence[str]

    settings: Settings

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.pairs = self.settings.text_pair is not None
        for key in ("text", "text_pair"):
            template = getattr(self.settings, key)
            if template is not None and not _FIELD.search(template):
                raise ConfigError(f"task.{key}={template}: name a field of the file, such as {{sentence}}")

    @override
    def examples_of(self, row: JsonNode, name: str) -> Iterator[TextExample]:
        pair = None if self.settings.text_pair is None else _fill(self.settings.text_pair, row)
        yield TextExample(name, _fill(self.settings.text, row), pair, self._label(row))

    def _label(self, row: JsonNode) -> int | None:
        gold = row.get("label")
        if gold is None:
            return None
        if gold.value in self.labels:
            return self.labels.index(gold.value)
        if isinstance(gold.value, int) and 0 <= gold.value < len(self.labels):
            return int(gold.value)
        raise DataError(
            f"{gold.where}: {str(gold.value)[:40]!r} must be 0 to {len(self.labels) - 1}, or one of "
            f"{', '.join(self.labels)}"
        )


def _fill(template: str, row: JsonNode) -> str:
    return _FIELD.sub(lambda match: row.field(match[1]).nonblank_text(), template)
