# SPDX-License-Identifier: Apache-2.0
"""Servers that demand a password or a certificate."""

import logging
import pathlib
import threading
from collections.abc import Callable, Iterator, Mapping

import pytest
import requests

from hashring import errors
from hashring.clock import SystemClock
from hashring.group import Member
from hashring.membership import Membership, new_boot
from hashring.ring import Host
from tests.contract.coordination import certificates, secured, servers
from tests.contract.coordination.backends import persist

CLOCK = SystemClock()
HOST = Host('c1')
TERM_S = 5.0

pytestmark = pytest.mark.slow

# The kind of server that a case needs, and how it is made.
CASES: Mapping[str, tuple[str, Callable[[pathlib.Path], secured.Secured]]] = {
    'etcd with password': ('etcd', secured.etcd_with_password),
    'redis with password': ('redis', secured.redis_with_password),
    'zookeeper with password': ('zookeeper', secured.zookeeper_with_password),
    'etcd with TLS': ('etcd', secured.etcd_with_tls),
    'redis with TLS': ('redis', secured.redis_with_tls),
    'zookeeper with TLS': ('zookeeper', secured.zookeeper_with_tls),
}


def _made(name: str, folder: pathlib.Path) -> secured.Secured:
    kind, make = CASES[name]
    if not servers.KINDS[kind].installed():
        pytest.skip(f'{kind} is not installed')
    return make(folder)


@pytest.fixture(scope='module', params=CASES)
def case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[secured.Secured]:
    """Each server; it is started once for all tests."""
    made = _made(request.param, tmp_path_factory.mktemp('secured'))
    yield made
    made.server.stop()


def join(url: str) -> tuple[Membership, Member]:
    boot = new_boot()
    me = Member(HOST, boot, machine='here', known=(HOST,))
    group = Membership(url, 'pool', HOST, boot, term_s=TERM_S)
    persist(group.connect)
    group.join(me)
    return group, me


def test_everything_works_and_no_log_has_the_password(
    case: secured.Secured, caplog: pytest.LogCaptureFixture
) -> None:
    """A member joins, has a lock and leaves; all is logged."""
    caplog.set_level(logging.DEBUG)
    group, me = join(case.url)
    group.heartbeat()
    assert me in group.members()
    assert group.try_lock(HOST)
    assert group.owns_lock(HOST)
    other, _ = join(case.url)
    assert not other.try_lock(HOST)
    group.release(HOST)
    for each in (group, other):
        each.close(leave=True, timeout_s=5.0)
    assert secured.SECRET not in caplog.text
    assert secured.SECRET not in repr(group.backend)


def test_wrong_password_is_an_error(
    case: secured.Secured, caplog: pytest.LogCaptureFixture
) -> None:
    """It is no answer, which the log shows without the password."""
    caplog.set_level(logging.DEBUG)
    group, me = join(case.url)
    wrong = Membership(case.wrong_url, 'pool', HOST, new_boot(), term_s=TERM_S)
    failed: list[str] = []

    def try_it() -> None:
        try:
            wrong.connect()
            wrong.join(me)
            wrong.heartbeat()
        except errors.BackendUnavailable as exc:
            failed.append(str(exc))

    thread = threading.Thread(target=try_it, daemon=True)
    thread.start()
    thread.join(20.0)
    assert failed
    assert secured.SECRET not in failed[0] + caplog.text
    group.close(leave=True, timeout_s=5.0)


def test_daemons_with_and_without_tls_are_one_pool(
    tmp_path: pathlib.Path,
) -> None:
    """So TLS is turned on for one daemon after the other, as for etcd."""
    if not servers.KINDS['etcd'].installed():
        pytest.skip('etcd is not installed')
    server, tls_url = secured.etcd_with_tls_on_one_port(tmp_path)
    (former, _), (later, me) = join(server.url), join(tls_url)
    assert former.try_lock(HOST)
    later.heartbeat()
    assert me in former.members()
    assert not later.try_lock(HOST)
    former.release(HOST)
    former.close(leave=True, timeout_s=5.0)
    assert later.try_lock(HOST)
    assert later.members() == (me,)
    later.close(leave=True, timeout_s=5.0)
    server.stop()


@pytest.fixture
def etcd(tmp_path: pathlib.Path) -> Iterator[secured.Secured]:
    """Etcd with a password."""
    made = _made('etcd with password', tmp_path)
    yield made
    made.server.stop()


def test_token_of_etcd_is_renewed(etcd: secured.Secured) -> None:
    """It ends without requests, with the server, and with a new role."""
    group, _ = join(etcd.url)
    assert group.try_lock(HOST)
    CLOCK.sleep(3.5)
    group.heartbeat()
    etcd.server.stop()
    etcd.server.start()
    persist(group.heartbeat)
    assert group.owns_lock(HOST)
    _add_role(etcd)
    group.heartbeat()
    assert group.owns_lock(HOST)
    group.close(leave=True, timeout_s=5.0)


def _add_role(etcd: secured.Secured) -> None:
    url = f'http://{etcd.server.place}/v3/auth'
    root = {'name': 'root', 'password': secured.SECRET}
    answer = requests.post(f'{url}/authenticate', json=root, timeout=5)
    requests.post(
        f'{url}/role/add',
        json={'name': 'another'},
        headers={'Authorization': answer.json()['token']},
        timeout=5,
    ).raise_for_status()


def test_wrong_password_of_etcd_is_named(etcd: secured.Secured) -> None:
    """The sentence names the option and the user."""
    group = Membership(etcd.wrong_url, 'p', HOST, new_boot(), term_s=TERM_S)
    with pytest.raises(errors.BackendUnavailable) as caught:
        group.connect()
    assert 'refuses the user agents of [coordination]' in str(caught.value)


def test_another_password_of_zookeeper_needs_another_namespace(
    tmp_path: pathlib.Path,
) -> None:
    """The entries keep the password with which they were made."""
    made = _made('zookeeper with password', tmp_path)
    group, _ = join(made.url)
    with pytest.raises(errors.BackendUnavailable, match='another namespace'):
        join(made.wrong_url)
    group.close(leave=True, timeout_s=5.0)
    again, me = join(made.wrong_url.replace('=ironic-compute', '=new'))
    again.heartbeat()
    assert again.members() == (me,)
    assert again.try_lock(HOST)
    again.close(leave=True, timeout_s=5.0)
    made.server.stop()


def test_wrong_authority_of_redis_is_named(tmp_path: pathlib.Path) -> None:
    """The sentence names the option, without Sentinel, too."""
    made = _made('redis with TLS', tmp_path)
    folder = tmp_path / 'stranger'
    folder.mkdir()
    stranger = certificates.make(folder).authority
    url = f'{made.server.url}?ssl=true&ssl_ca_certs={stranger}'
    group = Membership(url, 'p', HOST, new_boot(), term_s=TERM_S)
    with pytest.raises(errors.BackendUnavailable) as caught:
        group.connect()
    made.server.stop()
    assert ': correct ssl_ca_certs in [coordination]' in str(caught.value)
