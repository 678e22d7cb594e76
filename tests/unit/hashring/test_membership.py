# SPDX-License-Identifier: Apache-2.0
"""Membership over tooz, with the file driver: no server is needed."""

import contextlib
import dataclasses
import pathlib
import resource
import signal
import socket
import threading
from collections.abc import Iterator

import pytest

from hashring import errors
from hashring.clock import SystemClock
from hashring.group import Boot, Member, MemberState
from hashring.heartbeat import HeartbeatThread
from hashring.membership import (
    Membership,
    group_id,
    lock_id,
    new_boot,
    read_pools,
)
from hashring.opts import Timing
from hashring.paths import Path
from hashring.ring import Host

C1 = Host('c1')


def joined(folder: pathlib.Path, boot: str) -> tuple[Membership, Member]:
    # An older release publishes no marks, which is None.
    me = Member(C1, Boot(boot), marks=())
    made = Membership(f'file://{folder}', 'pool', C1, me.boot, term_s=15.0)
    made.connect()
    made.join(me)
    return made, me


def test_names_are_safe_for_every_driver() -> None:
    """Group and lock names have no slash and no space of the input."""
    assert group_id('rack 1/a') == b'ironic-compute.rack%201%2Fa'
    assert lock_id(Host('c 1/x')) == b'ironic-compute/host/c%201%2Fx'


def test_a_boot_is_never_given_twice() -> None:
    """Two agent processes have different boots."""
    assert new_boot() != new_boot()


def test_pools_are_read_again_after_a_loss_of_power(
    tmp_path: pathlib.Path,
) -> None:
    """It may empty files that were written shortly before."""
    former, _ = joined(tmp_path, 'b1')
    former.close(leave=True, timeout_s=5.0)
    for file in (tmp_path / 'groups').glob('*/.metadata'):
        file.write_bytes(b'')
    group, me = joined(tmp_path, 'b2')
    assert group.other_groups() == {}
    url = f'file://{tmp_path}'
    assert read_pools(url, term_s=15.0) == {'pool': (me,)}


def test_lease_is_renewed_on_a_full_disk(tmp_path: pathlib.Path) -> None:
    """The former record stays, and others can read it."""
    group, me = joined(tmp_path, 'b1')
    thread = HeartbeatThread(group, me, Timing(), SystemClock())
    for _ in range(2):
        thread.beat()
    before = thread.state()
    changed = dataclasses.replace(me, failing_paths=(Path('Ironic'),))
    thread.set_member(changed, before.lease.epoch)
    with full_disk():
        thread.beat()
    state = thread.state()
    assert state.lease.deadline_s > before.lease.deadline_s
    assert state.view.members == (me,)
    assert 'publish: [Errno' in (state.failure or '')
    thread.beat()
    assert thread.state().failure is None
    assert thread.state().view.members == (changed,)


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """Let this process make and delete files, but write nothing to any."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def test_an_unwritable_folder_is_refused_at_once(
    tmp_path: pathlib.Path,
) -> None:
    """An unwritable directory is an error of the constructor."""
    (tmp_path / 'file').write_text('')
    with pytest.raises(errors.BackendRefused, match='cannot be written'):
        Membership(
            f'file://{tmp_path}/file/x', 'p', C1, Boot('b'), term_s=15.0
        )


@pytest.mark.parametrize('option', ['ssl_ca_certs', 'ssl_certfile'])
def test_a_certificate_that_is_a_folder_is_refused_at_once(
    tmp_path: pathlib.Path, option: str
) -> None:
    """The client of Redis reads files only; that of etcd a folder, too."""
    url = f'redis://h?ssl=true&{option}={tmp_path}'
    refusal = f'sets {option}={tmp_path}, a file that cannot be read'
    with pytest.raises(errors.BackendRefused, match=refusal):
        Membership(url, 'p', C1, Boot('b'), term_s=15.0)
    Membership(
        f'etcd3+https://h?ca_cert={tmp_path}', 'p', C1, Boot('b'), term_s=15.0
    )


def test_observer_makes_no_folder(tmp_path: pathlib.Path) -> None:
    """A typing error in the option would look like an empty pool."""
    folder = tmp_path / 'mistyped'
    with pytest.raises(errors.BackendRefused, match='no such folder'):
        read_pools(f'file://{folder}', term_s=15.0)
    assert not folder.exists()


@pytest.mark.parametrize('scheme', ['etcd3+http', 'redis'])
def test_observer_is_told_which_backend_is_away(scheme: str) -> None:
    """With its URL, without a password; Redis is tried for a minute."""
    with socket.socket() as closed:
        closed.bind(('127.0.0.1', 0))
        port = closed.getsockname()[1]
    url = f'{scheme}://me:sesame@127.0.0.1:{port}'
    with pytest.raises(errors.BackendUnavailable) as raised:
        read_pools(url, term_s=15.0, timeout_s=2.0)
    shown = f'{scheme}://127.0.0.1:{port}, and it does not answer'
    assert shown in str(raised.value)
    assert 'sesame' not in str(raised.value)


def test_backend_is_named_without_its_password() -> None:
    """The agent logs this name when the backend is away."""
    url = 'redis://me:sesame@127.0.0.1:1?db=1'
    membership = Membership(url, '', Host('c1'), new_boot(), term_s=15.0)
    assert membership.backend_name == 'redis://127.0.0.1:1'


def test_foreign_record_is_left_out_and_logged_once(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A member with a foreign record is left out and logged once."""
    one, me = joined(tmp_path, 'b1')
    two, _ = joined(tmp_path, 'b2')
    two._driver.leave_group(group_id('pool')).get()
    two._driver.join_group(group_id('pool'), {'weight': 1}).get()
    assert one.members() == one.members() == (me,)
    assert len(caplog.records) == 1


def test_nobody_is_seen_in_a_group_nobody_joined(
    tmp_path: pathlib.Path,
) -> None:
    """Without any group the operator's tool reads an empty dict."""
    assert read_pools(f'file://{tmp_path}', term_s=15.0) == {}


def test_not_being_in_the_group_has_its_own_error(
    tmp_path: pathlib.Path,
) -> None:
    """Reading a group that does not exist raises NotInGroup."""
    made = Membership(f'file://{tmp_path}', 'p', C1, Boot('b'), term_s=15.0)
    made.connect()
    with pytest.raises(errors.NotInGroup):
        made.members()


def test_other_groups_are_those_of_other_agents(
    tmp_path: pathlib.Path,
) -> None:
    """Neither one's own group counts, nor one's former group."""
    made, _ = joined(tmp_path, 'b1')
    for pool, home in (('other', 'c2'), ('former', 'c1'), ('pool', 'c3')):
        member = Member(Host(home), Boot(home))
        other = Membership(
            f'file://{tmp_path}', pool, member.home, member.boot, term_s=15.0
        )
        other.connect()
        other.join(member)
    assert list(made.other_groups()) == ['other']
    assert set(made.pools()) == {'pool', 'other', 'former'}


def test_other_groups_have_an_agent_that_serves_this_home_host(
    tmp_path: pathlib.Path,
) -> None:
    """Two agents in different pools have the same host in nova.conf."""
    made, _ = joined(tmp_path, 'b1')
    rival = Member(C1, Boot('b2'), serving=(C1,))
    other = Membership(
        f'file://{tmp_path}', 'other', C1, rival.boot, term_s=15.0
    )
    other.connect()
    other.join(rival)
    assert made.other_groups() == {'other': (rival,)}
    other.publish(dataclasses.replace(rival, state=MemberState.RESTARTING))
    assert made.other_groups() == {}


def test_errors_of_a_driver_are_translated(tmp_path: pathlib.Path) -> None:
    """Drivers raise errors of any class; the request is named."""
    made, _ = joined(tmp_path, 'b1')

    def fail() -> None:
        raise RuntimeError('broken')

    made._driver.get_groups = fail
    with pytest.raises(errors.BackendUnavailable, match='groups: broken'):
        made.pools()


def test_reading_the_pools_leaves_no_thread(tmp_path: pathlib.Path) -> None:
    """The operator's tools read the pools without an agent."""
    joined(tmp_path, 'b1')
    before = set(threading.enumerate())
    assert set(read_pools(f'file://{tmp_path}', term_s=15.0)) == {'pool'}
    assert set(threading.enumerate()) <= before


def test_locks_of_a_folder_have_no_token(tmp_path: pathlib.Path) -> None:
    """Nobody can break such a lock, whether it is held or not."""
    made, _ = joined(tmp_path, 'b1')
    assert made.token(C1) is None
    assert made.try_lock(C1)
    assert made.token(C1) is None
    # tooz warns of a lock that is never released, in some later test.
    made.release(C1)


def test_closing_never_waits_for_long(tmp_path: pathlib.Path) -> None:
    """A group can be closed with and without leaving, and twice."""
    one, _ = joined(tmp_path, 'b1')
    two, me = joined(tmp_path, 'b2')
    one.close(leave=True, timeout_s=5.0)
    assert two.members() == (me,)
    two.close(leave=False, timeout_s=5.0)
    one.close(leave=True, timeout_s=5.0)


@pytest.mark.parametrize(
    ('option', 'named'),
    [
        ('max_pool_size=many', 'correct them'),
        ('use_ssl=true', 'use_ssl needs ssl_cert'),
        ('use_ssl=true&ssl_cert=/nowhere.pem', 'ssl_cert=/nowhere.pem, a'),
    ],
)
def test_option_that_a_driver_refuses_is_no_missing_library(
    option: str, named: str
) -> None:
    """The operator was told to install the library that was there."""
    url = f'memcached://localhost?{option}'
    with pytest.raises(errors.BackendRefused) as raised:
        Membership(url, 'pool', C1, Boot('b1'), term_s=15.0)
    assert named in str(raised.value)
    assert 'install' not in str(raised.value)
