# SPDX-License-Identifier: Apache-2.0
"""The manual: pages that are linked, and options and commands that exist."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCE = ROOT / 'doc' / 'source'
_TOCTREE = re.compile(r'\.\. toctree::\n((?:[ ]+:.*\n)*)\n((?:[ ]+\S.*\n)+)')


def _linked() -> set[pathlib.Path]:
    """Return the pages that stand in a table of contents."""
    found = {SOURCE / 'index.rst'}
    for page in SOURCE.rglob('*.rst'):
        for _, body in _TOCTREE.findall(page.read_text()):
            for name in body.split():
                found.add((page.parent / f'{name}.rst').resolve())
    return found


def test_each_page_is_in_a_table_of_contents() -> None:
    """Nobody finds a page that no other page names."""
    pages = {
        page.resolve()
        for page in SOURCE.rglob('*.rst')
        if page.parent.name != 'decisions' or page.name == 'index.rst'
    }
    assert pages == {page for page in _linked() if page in pages}
    assert _linked() - set(SOURCE.rglob('*.rst')) <= {
        path for path in _linked() if '*' in path.name
    }


def test_the_front_page_says_it_in_ten_lines() -> None:
    """What it is and for whom; the picture; the two commands."""
    front = (SOURCE / 'index.rst').read_text()
    before, picture, after = front.partition('.. image:: processes.svg')
    opening = [line for line in before.splitlines()[3:] if line.strip()]
    assert picture
    assert len(opening) <= 10
    assert '$ make demo\n   $ make test\n' in after


def test_the_readme_begins_with_the_two_commands() -> None:
    """A stranger sees them on the first screen."""
    screen = (ROOT / 'README.rst').read_text().splitlines()[:40]
    assert {'  make demo', '  make test'} <= set(screen)


def test_files_that_the_papers_name_exist() -> None:
    """Nobody is sent to a file that was moved."""
    for name in ('README.rst', 'CONTRIBUTING.rst', 'SECURITY.rst'):
        text = (ROOT / name).read_text()
        named = re.findall(r'``((?:[\w.-]+/)*[\w-]+\.(?:rst|py|txt))``', text)
        assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_site_is_not_dressed_as_a_project_of_openstack() -> None:
    """Its theme has a logo, menus and a legal footer of their own."""
    for conf in (SOURCE / 'conf.py', ROOT / 'releasenotes/source/conf.py'):
        assert 'openstackdocs' not in conf.read_text()


def test_the_reference_comes_from_the_code() -> None:
    """Nothing in it is written twice."""
    page = (SOURCE / 'admin' / 'reference.rst').read_text()
    generator = 'etc/ironic-compute-config-generator.conf'
    assert f':config-file: {generator}' in page
    assert (ROOT / generator).exists()
    assert '.. computectl-commands::' in page


def test_the_manual_has_each_file_of_the_state_folder() -> None:
    """Who restores or moves a controller finds what may be lost."""
    code = (ROOT / 'hashring' / 'state_dir.py').read_text()
    names = set(re.findall(r"'(\w+\.json)'", code))
    files = (SOURCE / 'admin' / 'operations.rst').read_text()
    lost = (SOURCE / 'admin' / 'backup.rst').read_text()
    assert len(names) > 5
    assert [name for name in names if f'{name}``' not in files] == []
    # The two that have no use on another machine, or in another pool.
    kept = names - {'home_lock.json', 'group.json'}
    assert [name for name in kept if f'{name}``' not in lost] == []


def test_the_manual_has_each_exit_status_of_a_process() -> None:
    """Who reads a status in the log finds its reason."""
    code = (ROOT / 'ironic_compute/agent/exit_codes.py').read_text()
    page = (SOURCE / 'admin' / 'configuration.rst').read_text()
    statuses = re.findall(r'^EX_\w+ = (\d+)$', code, re.MULTILINE)
    rows = set(re.findall(r'^(\d+)  ', page, re.MULTILINE))
    assert len(statuses) > 5
    assert {'0', '1', *statuses} <= rows
