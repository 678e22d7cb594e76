# SPDX-License-Identifier: Apache-2.0
"""Writes the map of the code: the lists and the picture on house.rst.

Run ``python doc/house.py`` after a module was added, moved or described
anew. The sentence of a room or a file is the first line of its docstring, and
the floors are the ``layers`` contract of ``.importlinter``, so neither is
written twice. With ``--check`` nothing is written, and the exit status is 1
if the page differs from the code; a test runs that.
"""

import ast
import configparser
import pathlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from xml.sax.saxutils import escape

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGES = ('ironic_compute', 'resource_tracker', 'hashring')
PAGE = ROOT / 'doc/source/contributor/house.rst'
PICTURE = ROOT / 'doc/source/contributor/floors.svg'

MAP_BEGINS, _MAP_ENDS = '.. The map begins here.\n', '.. The map ends here.\n'
_WIDTH, _FLOOR_HEIGHT, _MARGIN = 720, 64, 10


def sentence(path: pathlib.Path) -> str:
    """Return the first line of a module's docstring, as one sentence."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ''
    return text.partition('\n')[0]


def modules(folder: pathlib.Path) -> list[pathlib.Path]:
    """Return the modules that stand in a folder, without ``__init__``."""
    return sorted(p for p in folder.glob('*.py') if p.stem != '__init__')


def rooms(package: pathlib.Path) -> list[pathlib.Path]:
    """Return a package's folder, then the folders of its rooms."""
    return [package, *sorted(p.parent for p in package.glob('*/__init__.py'))]


def page_lines() -> Iterator[str]:
    """Yield the lines between the page's two marks."""
    for package in PACKAGES:
        for room in rooms(ROOT / package):
            name = f'{room.relative_to(ROOT).as_posix()}/'
            under = '=' if room.name == package else '-'
            yield from ('', name, under * len(name))
            yield from ('', sentence(room / '__init__.py'), '')
            for module in modules(room):
                yield f'``{module.name}``'
                yield f'    {sentence(module)}'
    yield ''


def page(text: str) -> str:
    """Return the page with its map made anew.

    :param text: the page as it is
    """
    before, _, rest = text.partition(MAP_BEGINS)
    _, _, after = rest.partition(_MAP_ENDS)
    made = '\n'.join(page_lines())
    return f'{before}{MAP_BEGINS}{made}\n{_MAP_ENDS}{after}'


def floors() -> list[list[str]]:
    """Return the rooms of each floor, the highest floor first."""
    law = configparser.ConfigParser()
    law.read(ROOT / '.importlinter')
    rows = law['importlinter:contract:floors']['layers'].split('\n')
    short = re.compile(r'ironic_compute\.')
    named = [short.sub('', row).split(' | ') for row in rows if row.strip()]
    return [*named, ['resource_tracker', 'hashring']]


def _box(x: float, y: float, width: float, name: str) -> str:
    middle, height = x + width / 2, _FLOOR_HEIGHT - 2 * _MARGIN
    return (
        f'<rect x="{x:.0f}" y="{y}" width="{width:.0f}" height="{height}" '
        f'rx="6" fill="#f4f6f8" stroke="#5a6b7b"/>\n'
        f'<text x="{middle:.0f}" y="{y + height / 2 + 5:.0f}" '
        f'text-anchor="middle">{escape(name)}</text>\n'
    )


def picture(storeys: Sequence[Sequence[str]]) -> str:
    """Draw the floors as SVG: who stands higher may import who stands lower.

    :param storeys: names of the rooms, the highest floor first
    """
    boxes = []
    for number, names in enumerate(storeys):
        width = (_WIDTH - _MARGIN * (len(names) + 1)) / len(names)
        for place, name in enumerate(names):
            x = _MARGIN + place * (width + _MARGIN)
            boxes.append(
                _box(x, number * _FLOOR_HEIGHT + _MARGIN, width, name)
            )
    height = len(storeys) * _FLOOR_HEIGHT
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" '
        f'viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" '
        f'font-size="14">\n{"".join(boxes)}</svg>\n'
    )


def wanted() -> Mapping[pathlib.Path, str]:
    """Return what the two files should contain."""
    return {PAGE: page(PAGE.read_text()), PICTURE: picture(floors())}


def main(arguments: Sequence[str]) -> int:
    """Write the map, or compare it with the code.

    :returns: 1 if ``--check`` finds a difference, else 0
    """
    stale = {
        path: text
        for path, text in wanted().items()
        if not path.exists() or path.read_text() != text
    }
    if '--check' in arguments:
        for path in stale:
            print(f'{path.relative_to(ROOT)}: run "python doc/house.py"')
        return 1 if stale else 0
    for path, text in stale.items():
        path.write_text(text)
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
