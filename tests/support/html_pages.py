"""HTML as a tree of elements, so that tests assert on what a page holds; unbalanced HTML fails."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

_VOID = {"meta", "br", "link", "img", "input", "hr"}


@dataclass
class Element:
    tag: str
    attributes: dict[str, str] = field(default_factory=dict)
    children: list[Element | str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All text below it, as it is written."""
        return "".join(child if isinstance(child, str) else child.text for child in self.children)

    @property
    def words(self) -> str:
        """All text below it, with single spaces."""
        return " ".join(self.text.split())

    @property
    def classes(self) -> list[str]:
        return self.attributes.get("class", "").split()

    def __iter__(self) -> Iterator[Element]:
        """It and all elements below it, in the order of the page."""
        yield self
        for child in self.children:
            if isinstance(child, Element):
                yield from child

    def all(self, tag: str = "", *, css: str = "") -> list[Element]:
        """The elements below it with this tag and this class."""
        return [
            one for one in self if one is not self and (not tag or one.tag == tag) and (not css or css in one.classes)
        ]

    def one(self, tag: str = "", *, css: str = "") -> Element:
        found = self.all(tag, css=css)
        assert len(found) == 1, f"{len(found)} of {tag} {css}"
        return found[0]

    def with_id(self, name: str) -> Element:
        found = [one for one in self if one.attributes.get("id") == name]
        assert len(found) == 1, f"{len(found)} of #{name}"
        return found[0]


class _Tree(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.root = Element("")
        self.open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"<{tag}> has an attribute twice"
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.open[-1].children.append(element)
        if tag not in _VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open[-1].children.append(Element(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop().tag == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)


def parsed(text: str) -> Element:
    """The page as a tree."""
    tree = _Tree()
    tree.feed(text)
    tree.close()
    assert tree.open == [tree.root], [element.tag for element in tree.open]
    return tree.root


def columns(table: Element) -> dict[str, list[Element]]:
    """The cells of each column of a table by its heading, without the rows that head a group."""
    headings = [heading.words for heading in table.one("thead").all("th")]
    rows = [row for body in table.all("tbody") for row in body.all("tr") if "group" not in row.classes]
    cells = [[cell for cell in row.all() if cell.tag in ("td", "th")] for row in rows]
    assert all(len(row) == len(headings) for row in cells)
    return {heading: [row[place] for row in cells] for place, heading in enumerate(headings)}
