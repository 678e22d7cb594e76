# SPDX-License-Identifier: Apache-2.0
"""The check of the manual's links finds each kind of broken link."""

import importlib.util
import pathlib
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def load() -> Any:
    """Return the module, which belongs to no package."""
    spec = importlib.util.spec_from_file_location(
        'links', ROOT / 'doc' / 'links.py'
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check(folder: pathlib.Path, link: str) -> list[str]:
    """Return what is said of one link in a manual of two pages."""
    (folder / 'admin').mkdir()
    (folder / 'index.html').write_text(f'<a href="{link}">x</a>')
    (folder / 'admin' / 'faq.html').write_text('<h2 id="why">Why</h2>')
    return list(load().broken(folder))


@pytest.mark.parametrize(
    'link',
    [
        'admin/faq.html',
        'admin/faq.html#why',
        'admin/../index.html',
        '#',
        'https://opendev.org/x#y',
        'mailto:me@example.org',
    ],
)
def test_good_link(tmp_path: pathlib.Path, link: str) -> None:
    """A page, an anchor in it, and other servers are no problem."""
    assert check(tmp_path, link) == []


@pytest.mark.parametrize(
    ('link', 'why'),
    [
        ('admin/none.html', 'leads to no file'),
        ('admin/faq.html#how', 'leads to no anchor'),
        ('#why', 'leads to no anchor'),
    ],
)
def test_broken_link(tmp_path: pathlib.Path, link: str, why: str) -> None:
    """The page and the link are named."""
    assert check(tmp_path, link) == [f'index.html: {link} {why}']
