# SPDX-License-Identifier: Apache-2.0
"""The status page in Chromium; its pictures are kept in ``build/page``."""

import contextlib
import functools
import pathlib
import threading
from collections.abc import Callable, Iterator

import pytest

from hashring.clock import SystemClock
from ironic_compute.agent_port import worker_metrics
from ironic_compute.agent_port.agent_metrics import BackendMetrics
from ironic_compute.agent_port.application import Application, Snapshot
from ironic_compute.agent_port.server import BoundedServer
from tests.browser import chromium
from tests.browser.chromium import Tab
from tests.fakes.clock import ManualClock
from tests.unit.ironic_compute.agent_port import pools
from tests.unit.ironic_compute.agent_port.pools import MadeUpPool

pytestmark = pytest.mark.skipif(
    chromium.PROGRAM is None, reason='Chromium is not installed'
)
PICTURES = pathlib.Path(__file__).parents[2] / 'build' / 'page'
_FIRST_PAINT = """
new Promise(resolve => new PerformanceObserver(list => {
  for (const each of list.getEntriesByName('first-contentful-paint')) {
    resolve(each.startTime);
  }
}).observe({type: 'paint', buffered: true}))
"""
_OVERFLOW = 'document.documentElement.scrollWidth - innerWidth'


class _Clock(ManualClock):
    """Stands still for the status; reads of workers still wait."""


@contextlib.contextmanager
def _served(pool: MadeUpPool) -> Iterator[tuple[str, Application]]:
    """Serve the page of a pool, with a socket for each worker."""
    clock = _Clock(pools.NOW_S)
    application = Application(
        clock, BackendMetrics(clock), lambda query: list(pool.moves)
    )
    channels = {}
    for host, text in pool.texts.items():
        channel, end = worker_metrics.make_channel()
        worker_metrics.answer_requests(
            end.detach(), functools.partial(str.encode, text), SystemClock()
        )
        channels[host] = channel
    application.publish(Snapshot(pool.status, channels))
    server = BoundedServer('127.0.0.1', 0, application, SystemClock())
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            port = server.server_address[1]
            yield f'http://127.0.0.1:{port}/', application
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope='module')
def tab() -> Iterator[Tab]:
    """A tab of one browser for all tests."""
    with chromium.browser() as made:
        yield made


@pytest.mark.parametrize('dark', [False, True], ids=['light', 'dark'])
@pytest.mark.parametrize('width', [390, 1400])
@pytest.mark.parametrize(
    'make', [pools.troubled, pools.large, pools.hostile, pools.well]
)
def test_each_pool_fits_the_screen(
    tab: Tab, make: Callable[[], MadeUpPool], width: int, dark: bool
) -> None:
    """No name makes it wider; nothing is loaded, run or complained of."""
    tab.show(width, dark=dark)
    with _served(make()) as (url, _):
        tab.open(url)
        colours = 'dark' if dark else 'light'
        tab.shoot(PICTURES / f'{make.__name__}-{width}-{colours}.png')
        assert tab.evaluate(_OVERFLOW) <= 0
        assert (
            tab.evaluate('document.querySelectorAll("main img").length') == 0
        )
        assert 'ironic-compute' in tab.evaluate('document.title')
        assert tab.complaints() == []


def test_a_large_pool_is_painted_soon(tab: Tab) -> None:
    """50 hosts and 50,000 nodes: 0.3 s, if nothing has a higher priority.

    Tests share a busy machine, so the bound is that of a hang.
    """
    tab.show(1400, dark=False)
    found_ms = []
    with _served(pools.large()) as (url, _):
        for _ in range(3):
            tab.open(url)
            found_ms.append(tab.evaluate(_FIRST_PAINT))
    print(f'first paint after {found_ms} ms')
    assert min(found_ms) <= 10_000


def test_without_scripts_all_is_there(tab: Tab) -> None:
    """The page then renews itself by a reload."""
    tab.show(390, dark=False, script=False)
    with _served(pools.troubled()) as (url, _):
        tab.open(url)
        tab.shoot(PICTURES / 'troubled-390-noscript.png')
        text = tab.evaluate('document.body.innerText')
        assert 'No daemon has the lock of host c3.' in text
        assert '1,234' in text
        assert 'Renewed' not in text
        assert tab.evaluate('document.querySelector("noscript meta").content')
    tab.show(390, dark=False)


def test_the_script_renews_the_page_and_tells_when_it_cannot(tab: Tab) -> None:
    """A page that is old must not look new."""
    tab.show(1400, dark=False)
    with _served(pools.well()) as (url, application):
        tab.open(url)
        assert 'Renewed' in tab.evaluate('age.textContent')
        application.publish(Snapshot(pools.troubled().status, {}))
        tab.evaluate('renew()')
        assert 'problems' in tab.evaluate('verdict.textContent')
    tab.evaluate('renewedAt -= 20000; showAge()')
    assert 'what you see is old' in tab.evaluate('age.textContent')
    assert tab.evaluate('age.className') == 'stale'
    tab.shoot(PICTURES / 'stale-1400.png')
    assert tab.evaluate('renew().then(() => 1, () => 0)') == 0
