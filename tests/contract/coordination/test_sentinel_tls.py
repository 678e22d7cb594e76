# SPDX-License-Identifier: Apache-2.0
"""Redis and Sentinels that speak TLS only, and demand a certificate."""

import dataclasses
import logging
import pathlib
import shutil
from collections.abc import Iterator, Mapping

import pytest

from hashring import errors
from hashring.group import Member
from hashring.membership import Membership, new_boot
from hashring.ring import Host
from tests.contract.coordination import certificates, redis_sentinel
from tests.contract.coordination.backends import persist
from tests.contract.coordination.certificates import Certificates
from tests.contract.coordination.clusters import wait_for
from tests.contract.coordination.redis_sentinel import RedisSentinel

HOST = Host('c1')
# The lock outlives a second election, which follows 20 s after a tie.
TERM_S = 60.0
# No part of them is in anything else that is logged.
SECRETS = ('xq7sesame9', redis_sentinel.PASSWORD)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which('redis-sentinel') is None,
        reason='Sentinel is not installed',
    ),
]


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """A cluster with TLS, and the files of its clients.

    :param stranger: the files of another authority
    """

    cluster: RedisSentinel
    ours: Certificates
    stranger: Certificates

    def url(self, options: str) -> str:
        """Return a URL with all Sentinels and all passwords.

        :param options: with the names of files, such as ``{ours.key}``
        """
        return self._with(self.cluster.url(), options)

    def url_of_one(self, options: str) -> str:
        """Return a URL with one Sentinel."""
        return self._with(self.cluster.url_of(0), options)

    def _with(self, url: str, options: str) -> str:
        user = f'{redis_sentinel.USER}:{redis_sentinel.PASSWORD}@'
        url = url.replace('redis://', f'redis://{user}')
        filled = options.format(ours=self.ours, stranger=self.stranger)
        # A busy machine may need longer than the default of 3 s.
        return f'{url}&sentinel_password={SECRETS[0]}&timeout=20&{filled}'


BOTH = 'ssl=true&sentinel_ssl=true'
AUTHORITY = 'ssl_ca_certs={ours.authority}'
CLIENT = 'ssl_certfile={ours.certificate}&ssl_keyfile={ours.key}'
RIGHT = f'{BOTH}&{AUTHORITY}&{CLIENT}'
OTHER_CLIENT = CLIENT.replace('ours', 'stranger')
# The wrong options, and how to mend them.
WRONG: Mapping[str, tuple[str, str]] = {
    'another authority': (
        f'{BOTH}&ssl_ca_certs={{stranger.authority}}&{CLIENT}',
        'CERTIFICATE_VERIFY_FAILED.*: correct ssl_ca_certs in ',
    ),
    'no authority': (
        f'{BOTH}&{CLIENT}',
        'CERTIFICATE_VERIFY_FAILED.*: add ssl_ca_certs in ',
    ),
    'no certificate': (
        f'{BOTH}&{AUTHORITY}',
        ': add ssl_certfile and ssl_keyfile to ',
    ),
    'certificate of another authority': (
        f'{BOTH}&{AUTHORITY}&{OTHER_CLIENT}',
        ': correct ssl_certfile and ssl_keyfile in ',
    ),
    'another key': (
        f'{RIGHT}&ssl_keyfile={{stranger.key}}',
        ': correct ssl_ca_certs, ssl_certfile, ssl_keyfile in ',
    ),
    'Sentinels without TLS': (
        f'ssl=true&{AUTHORITY}&{CLIENT}',
        ': add sentinel_ssl=true to ',
    ),
    'Redis without TLS': (
        f'sentinel_ssl=true&{AUTHORITY}&{CLIENT}',
        ': add ssl=true to ',
    ),
    'no TLS': ('', ': add ssl=true and sentinel_ssl=true to '),
}


@pytest.fixture(scope='module')
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    """A running cluster, which is started once for all tests."""
    ours = certificates.make(tmp_path_factory.mktemp('ours'))
    stranger = certificates.make(tmp_path_factory.mktemp('stranger'))
    cluster = RedisSentinel(
        tmp_path_factory.mktemp('sentinel'),
        down_after_s=1.0,
        password=SECRETS[0],
        tls=ours,
    )
    cluster.start()
    yield Case(cluster, ours, stranger)
    cluster.stop()


@pytest.fixture
def case(shared: Case, caplog: pytest.LogCaptureFixture) -> Case:
    """The cluster; everything is logged."""
    caplog.set_level(logging.DEBUG)
    return shared


def new_group(url: str) -> Membership:
    return Membership(url, 'pool', HOST, new_boot(), term_s=TERM_S)


def join(url: str) -> tuple[Membership, Member]:
    group = new_group(url)
    me = Member(HOST, group.boot, machine='here', known=(HOST,))
    persist(group.connect)
    group.join(me)
    return group, me


def check_secrets(text: str) -> None:
    for secret in SECRETS:
        assert secret not in text


@pytest.mark.parametrize(('options', 'cure'), WRONG.values(), ids=WRONG)
def test_wrong_option_is_named(
    case: Case, options: str, cure: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The sentence has the error, the option and how to mend it."""
    group = new_group(case.url_of_one(options))
    with pytest.raises(errors.BackendUnavailable, match=cure) as caught:
        group.connect()
    assert '[coordination] backend_url' in str(caught.value)
    check_secrets(str(caught.value) + caplog.text)


def test_server_of_another_name_is_refused(case: Case) -> None:
    """A certificate of the right authority may be that of another server."""
    url = case.url_of_one(RIGHT).replace('127.0.0.1', 'localhost')
    with pytest.raises(
        errors.BackendUnavailable,
        match=r'a certificate must have the host name or address by which ',
    ):
        new_group(url).connect()


def test_renewed_certificate_is_used_by_the_next_connection(
    case: Case, tmp_path: pathlib.Path
) -> None:
    """The files are read again, so no daemon has to be restarted."""
    mine = tmp_path / 'ca.pem'
    mine.write_bytes(case.stranger.authority.read_bytes())
    options = f'{BOTH}&ssl_ca_certs={mine}&{CLIENT}'
    group = new_group(case.url_of_one(options))
    with pytest.raises(errors.BackendUnavailable, match='VERIFY_FAILED'):
        group.connect()
    mine.write_bytes(case.ours.authority.read_bytes())
    persist(group.connect)
    group.close(leave=True, timeout_s=5.0)


def test_new_master_is_found_through_any_sentinel(
    case: Case, caplog: pytest.LogCaptureFixture
) -> None:
    """A member keeps its lock; another one finds it without one Sentinel."""
    case.cluster.await_whole()
    group, me = join(case.url(RIGHT))
    assert me in group.members()
    assert group.try_lock(HOST)
    group.heartbeat()
    former = case.cluster.leader()
    former.stop()
    wait_for(lambda: case.cluster.leader() is not former)
    persist(group.heartbeat)
    assert group.owns_lock(HOST)
    lost = case.cluster.sentinels[0]
    lost.stop()
    other, _ = join(case.url(RIGHT))
    assert not other.try_lock(HOST)
    group.release(HOST)
    assert other.try_lock(HOST)
    for each in (group, other):
        each.close(leave=True, timeout_s=5.0)
        check_secrets(repr(each.backend))
    check_secrets(caplog.text)
    for server in (former, lost):
        server.start()
