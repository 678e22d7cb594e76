# SPDX-License-Identifier: Apache-2.0
"""Check the links of the built manual without a network.

  python doc/links.py doc/build/html

Each link inside the manual must lead to a file, and its anchor to an element
of that page. Sphinx checks the references that it makes, but neither links
that are written out nor the anchors of a theme. ``tox -e linkcheck`` asks
other servers for the links to them.
"""

import html.parser
import pathlib
import sys
import urllib.parse
from collections.abc import Iterator

# Pages that Sphinx and the theme make, whose anchors a script makes.
_BY_SCRIPT = {'search.html'}


class _Page(html.parser.HTMLParser):
    """The links of a page, and the anchors in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(
        self, tag: str, attrs: list[tuple[str, str | None]]
    ) -> None:
        values = dict(attrs)
        self.anchors |= {values.get('id') or '', values.get('name') or ''}
        for name in ('href', 'src'):
            if values.get(name):
                self.links.add(str(values[name]))


def broken(folder: pathlib.Path) -> Iterator[str]:
    """Yield a sentence for each link that leads nowhere."""
    pages = {
        path.resolve(): _Page(path.read_text())
        for path in sorted(folder.rglob('*.html'))
    }
    for path, page in pages.items():
        if path.name in _BY_SCRIPT:
            continue
        for link in sorted(page.links):
            why = _problem(link, path, pages)
            if why:
                yield f'{path.relative_to(folder.resolve())}: {link} {why}'


def _problem(
    link: str, path: pathlib.Path, pages: dict[pathlib.Path, _Page]
) -> str:
    """Return what is wrong with a link of a page; '' if nothing is."""
    parts = urllib.parse.urlsplit(link)
    if parts.scheme or parts.netloc:
        return ''
    name = urllib.parse.unquote(parts.path)
    target = (path.parent / name).resolve() if name else path
    if not target.exists():
        return 'leads to no file'
    anchor = urllib.parse.unquote(parts.fragment)
    if not anchor or target not in pages:
        return ''
    return '' if anchor in pages[target].anchors else 'leads to no anchor'


def main(folder: str) -> int:
    """Print the broken links; return the exit status: 1 if there are any."""
    found = list(broken(pathlib.Path(folder)))
    for sentence in found:
        print(sentence)
    return 1 if found else 0


if __name__ == '__main__':
    sys.exit(main(*sys.argv[1:]))
