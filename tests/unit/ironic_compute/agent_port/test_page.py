# SPDX-License-Identifier: Apache-2.0
"""The status page without a browser: what it says, and what it escapes."""

import dataclasses
import html.parser
import json
import pathlib
import re
import shutil
import time
from collections.abc import Iterator

import pytest

from hashring.adoption import View
from ironic_compute.agent_port import figures, page
from tests.unit.ironic_compute.agent_port import pools
from tests.unit.ironic_compute.agent_port.pools import MadeUpPool
from tests.unit.ironic_compute.agent_port.test_application import Client
from tests.unit.ironic_compute.agent_port.test_peers import (
    TRIES_COUNT,
    port_that_answers,
)
from tests.unit.ironic_compute.journal.made_up import move

_VOID = {'meta', 'link'}
_LOADED = {'link': 'href', 'script': 'src', 'a': 'href'}


class _Page(html.parser.HTMLParser):
    """What a browser would make of the page."""

    def __init__(self, pool: MadeUpPool) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ''
        self._open: list[str] = []
        known = {h: figures.parse(text) for h, text in pool.texts.items()}
        self.html = page.render(pool.status, known, pools.NOW_S, pool.moves)
        self.feed(self.html)
        self.close()
        assert not self._open

    def handle_starttag(
        self, tag: str, attrs: list[tuple[str, str | None]]
    ) -> None:
        self.tags.append((tag, dict(attrs)))
        self.text += ' '
        if tag not in _VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    @property
    def words(self) -> str:
        """The text, without line ends."""
        return ' '.join(self.text.split())


def test_a_pool_that_is_well_is_seen_at_one_look() -> None:
    """The first heading says so, and the title has no number."""
    shown = _Page(pools.well())
    assert 'No problem is seen' in shown.words
    assert 'c1 · ironic-compute' in shown.words
    assert 'agreed for 2 h' in shown.words
    assert 'last heartbeat 2 s ago, term 15 s, lapses: 0' in shown.words


def test_problems_come_first_and_name_their_alert() -> None:
    """Who is woken at night finds the section of the manual."""
    shown = _Page(pools.troubled())
    assert '7 problems' in shown.words
    assert 'No daemon has the lock of host c3.' in shown.words
    assert 'IronicComputeHostUnserved' in shown.words
    assert 'hunter2' not in shown.html


def test_findings_have_the_name_and_cure_that_fsck_has() -> None:
    """The host that is meant is in the command."""
    shown = _Page(pools.troubled())
    assert (
        'No daemon has the lock of host c3. IronicComputeHostUnserved '
        'host-not-served What to do: ironic-computectl host list; start the '
        'daemon of the host, or another one of the pool' in shown.words
    )
    assert 'change-not-in-placement What to do: search the log of the' in (
        shown.words
    )


def test_last_moves_are_shown() -> None:
    """Of nodes and of hosts, with who has ordered them."""
    shown = _Page(pools.large())
    uuid = '6f1c0f5e-8d3b-4c55-9a1b-2f0e7d6c5b4a'
    assert (
        f'{uuid} 2027-01-15 07:59:00Z evict controller-01 controller-02 '
        f'{uuid} pin ann on ctl-1 at 2027-01-15 08:00 UTC 1 s' in shown.words
    )
    assert (
        'host controller-01 2027-01-15 07:56:00Z adoption controller-01 '
        'controller-02 - retire' in shown.words
    )
    assert 'Last moves None is known.' in _Page(pools.well()).words


def test_hosts_show_nodes_servers_moves_and_dirt() -> None:
    """Where the figures are not known, the page says so."""
    shown = _Page(pools.troubled())
    assert (
        'c1 c1 1,234 1 of 3 321 2 to c3 stay with their server: 1 '
        '7, oldest 15 min' in shown.words
    )
    assert 'c2 c1 adopted ? 1 of 3 ? ? ?' in shown.words
    assert 'c4 nobody ? not in the ring' in shown.words
    assert 'the daemon that serves the host did not tell' in shown.words


def test_shares_are_numbers_of_nodes_if_all_are_known() -> None:
    """Beside what each host has."""
    shown = _Page(pools.large())
    assert 'controller-07 controller-00 adopted 1,000 1,000 600' in shown.words
    assert '50,000 30,000 with a server' in shown.words
    assert 'did not tell' not in shown.words


def test_daemons_show_what_they_reach() -> None:
    """One that is half alive, and disagrees about the ring."""
    shown = _Page(pools.troubled())
    row = 'half alive nothing another one yes yes yes yes no'
    assert f'c3 c3.example.org 3.0.0 {row}' in shown.words


def test_daemon_that_is_gone_stays_in_the_table() -> None:
    """In its place, with the daemon that serves its host now."""
    shown = _Page(pools.troubled())
    serves = 'gone nothing; c2 is served by c1 - - - - - -'
    assert 'c1 (this one) c1.example.org 3.0.0 up c1, c2' in shown.words
    assert f'c2 - {serves} c3 c3.example.org' in shown.words
    assert 'c4 - gone nothing; c4 is served by nobody - -' in shown.words
    assert 'Daemons 2 2 gone, 4 hosts' in shown.words
    assert 'gone' not in _Page(pools.well()).words.casefold()


def test_hosts_of_other_daemons_have_the_figures_of_their_port() -> None:
    """And a link to the page there; the shares are known then."""
    row = {'host': 'c2', **figures.HostFigures(nodes=5).as_json()}
    status = pools.well().status
    me, second, third = status.heartbeat.view.members
    with port_that_answers(json.dumps([row]).encode()) as url:
        second = dataclasses.replace(second, page=url, machine=me.machine)
        view = View((me, second, third))
        client = Client()
        client.publish(
            dataclasses.replace(
                status,
                heartbeat=dataclasses.replace(status.heartbeat, view=view),
            )
        )
        nodes = '<td data-label="Nodes" class="number">5</td>'
        text = _reload(client, nodes)
    assert f'<a href="{url}"><bdi class="name">c2</bdi></a>' in text
    assert nodes in text


def _reload(client: Client, part: str) -> str:
    """Return the page as soon as it has a part, which is of another port.

    A page waits for a part of a second, which a busy machine may need.
    """
    text = ''
    for _ in range(TRIES_COUNT):
        text = client.get('/').body.decode()
        if part in text:
            break
    return text


def test_moves_of_other_daemons_are_those_of_their_ports() -> None:
    """The newest of the whole pool, each once."""
    mine, theirs = move(5, node='mine'), move(9, node='theirs')
    status = pools.well().status
    me, second, third = status.heartbeat.view.members
    rows = [each.as_json() for each in (theirs, mine)]
    with port_that_answers(json.dumps(rows).encode()) as url:
        second = dataclasses.replace(second, page=url, machine=me.machine)
        client = Client(moves=[mine])
        client.publish(
            dataclasses.replace(
                status,
                heartbeat=dataclasses.replace(
                    status.heartbeat, view=View((me, second, third))
                ),
            )
        )
        text = _reload(client, '>theirs<')
    assert text.count('>mine<') == text.count('>theirs<') == 1
    assert text.index('>theirs<') < text.index('>mine<')


def test_hostile_names_are_text() -> None:
    """Each is shown whole, and makes no tag and no attribute."""
    shown, plain = _Page(pools.hostile()), _Page(pools.troubled())
    for name in pools.HOSTILE:
        assert name in shown.text
    kinds = {tag for tag, _ in plain.tags}
    assert {tag for tag, _ in shown.tags} <= kinds
    assert len([tag for tag, _ in shown.tags if tag == 'script']) == 1
    assert not any(
        name.startswith('on') or name == 'style'
        for _, attributes in shown.tags
        for name in attributes
    )
    assert '1337' not in shown.text
    assert 'javascript' not in shown.html
    # A name that changes the direction of text changes no text after it.
    assert '</bdi> <code>IronicComputePathFailing</code>' in shown.html


def test_the_page_loads_only_what_the_port_serves() -> None:
    """No outside resource; paths are relative, for a proxy with a prefix."""
    client = Client()
    client.publish(pools.well().status)
    for tag, attributes in _Page(pools.well()).tags:
        url = attributes.get(_LOADED.get(tag, ''))
        if url and url != 'data:,':
            assert client.get(f'/{url}').status == 200
    for name in ('page.css', 'page.js'):
        assert not re.search('https?:|@import|url[(]', _web(name))


def _web(name: str) -> str:
    return page.asset(name).decode()


def test_the_policy_allows_no_inline_script_or_style() -> None:
    """It is sent with every answer."""
    client = Client()
    client.publish(pools.well().status)
    for path in ('/', '/page.js', '/api/v1/hosts', '/nothing'):
        policy = client.get(path).headers['Content-Security-Policy']
        assert policy == page.POLICY
        assert "default-src 'none'" in policy
        assert 'unsafe' not in policy


@pytest.mark.parametrize(
    ('path', 'kind'),
    [
        ('/', 'text/html; charset=utf-8'),
        ('/page.css', 'text/css; charset=utf-8'),
        ('/page.js', 'text/javascript; charset=utf-8'),
    ],
)
def test_each_file_has_its_type(path: str, kind: str) -> None:
    """Browsers are told not to guess."""
    client = Client()
    client.publish(pools.hostile().status)
    answer = client.get(path)
    assert (answer.status, answer.headers['Content-Type']) == (200, kind)
    assert answer.headers['X-Content-Type-Options'] == 'nosniff'


def test_a_stuck_main_loop_still_has_a_page() -> None:
    """The page is what tells of it."""
    client = Client()
    client.publish(pools.well().status)
    client.clock.advance(60.0)
    answer = client.get('/')
    assert answer.status == 200
    assert b'has not turned for 60 s' in answer.body


def test_a_large_pool_is_rendered_in_a_part_of_a_second() -> None:
    """50 hosts and 50,000 nodes, with all texts of the workers to parse."""
    pool = pools.large()
    _Page(pool)  # Compiles the template.
    begun_s = time.process_time()
    _Page(pool)
    assert time.process_time() - begun_s < 1.0


@pytest.mark.parametrize(
    ('seconds', 'words'),
    [
        (0.4, '0 s'),
        (119.0, '119 s'),
        (120.0, '2 min'),
        (7200.0, '2 h'),
        (172800.0, '2 days'),
    ],
)
def test_durations_have_the_unit_that_fits(seconds: float, words: str) -> None:
    """Nobody divides by 3,600 at night."""
    assert page.duration(seconds) == words


@pytest.fixture
def web(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[pathlib.Path]:
    """The folder of a package of its own, which nobody has read from."""
    made = tmp_path / 'web'
    shutil.copytree(page.WEB, made)
    monkeypatch.setattr(page, 'WEB', made)
    _forget_files()
    yield made
    _forget_files()


def _forget_files() -> None:
    page._template.cache_clear()
    page.asset.cache_clear()


def test_page_is_that_of_the_release_that_runs(web: pathlib.Path) -> None:
    """An upgrade replaces its files before somebody has looked at it."""
    client = Client()
    client.publish()
    for name in ('page.html', 'page.css', 'page.js'):
        web.joinpath(name).write_text('{{ of_a_later_release }}')
    for path in ('/', '/page.css', '/page.js'):
        answer = client.get(path)
        assert answer.status == 200
        assert b'of_a_later_release' not in answer.body
