"""A hook for mkdocs: pages and pictures outside the folder of the guides become part of the site, links included."""

import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
#: What the guides link to outside their folder, by the name that it has in the site.
PAGES = {"RESULTS.md": "scripts/RESULTS.md", "CONTRIBUTING.md": ".github/CONTRIBUTING.md", "project.md": "README.md"}
FILES = {"first_session.ipynb": "scripts/first_session.ipynb"}
_LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files, config):
    """Add the pages and the pictures."""
    figures = {f"figures/{path.name}": str(path.relative_to(ROOT)) for path in (ROOT / ".github/figures").iterdir()}
    for name, source in {**PAGES, **FILES, **figures}.items():
        files.append(File.generated(config, name, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown, page, config, files):
    """Point each link to a file of the repository to its place in the site."""
    folder = (ROOT / PAGES.get(page.file.src_uri, f"lmtransfer/guides/{page.file.src_uri}")).parent
    places = {str(ROOT / source): name for name, source in {**PAGES, **FILES}.items()}

    def replace(match):
        target, anchor = match[1], match[2] or ""
        if "://" in target:
            return match[0]
        path = (folder / target).resolve()
        guides = ROOT / "lmtransfer/guides"
        if path.is_relative_to(guides):
            name = str(path.relative_to(guides))
        elif path.parent == ROOT / ".github/figures":
            name = f"figures/{path.name}"
        else:
            name = places.get(str(path), target)
        return f"]({name}{anchor})"

    return _LINK.sub(replace, markdown)
