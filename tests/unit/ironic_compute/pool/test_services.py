# SPDX-License-Identifier: Apache-2.0
"""Nova's Service records, and the time between two reads of them."""

import datetime
from typing import Any

import pytest
from nova import objects
from oslo_utils import timeutils

from hashring.ring import Host
from ironic_compute.pool.host_mappings import HostMappings, Mapped
from ironic_compute.pool.services import PollInterval, ServiceDirectory

C1 = Host('c1')
objects.register_all()


def _record(number: int, last_seen_up: Any = None) -> Any:
    now = timeutils.utcnow(with_timezone=True)
    return objects.Service(
        id=number,
        host=C1,
        topic='compute',
        binary='nova-compute',
        disabled=False,
        forced_down=False,
        created_at=now,
        last_seen_up=last_seen_up or now,
    )


def _answer(monkeypatch: pytest.MonkeyPatch, *reads: list[Any]) -> None:
    """Have Nova answer each read of all records with one of these."""
    answers = iter(reads)
    monkeypatch.setattr(
        objects.ServiceList,
        'get_by_binary',
        lambda context, binary, include_disabled: next(answers),
    )


def _pass_time(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Have Nova's clock show a later time."""
    later = timeutils.utcnow() + datetime.timedelta(seconds=seconds)
    monkeypatch.setattr(timeutils, 'utcnow', lambda: later)


def test_host_stays_up_until_the_records_are_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its heartbeats go on, and only the record that was read gets older."""
    gone = timeutils.utcnow(with_timezone=True)
    _answer(monkeypatch, [_record(1)], [_record(1, gone)])
    directory = ServiceDirectory(
        HostMappings(lambda host: False, lambda host: Mapped.YES)
    )
    assert not directory.is_up(C1)
    directory.read_records()
    _pass_time(monkeypatch, 75.0)
    assert directory.is_up(C1)
    directory.read_records()
    assert not directory.is_up(C1)


def test_mapping_of_a_host_that_was_disabled_is_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its retirement may have deleted the mapping before it was ended."""
    records = [_record(1), _record(1), _record(1)]
    records[1].disabled = True
    _answer(monkeypatch, *([record] for record in records))
    answers = iter([Mapped.YES, Mapped.NO])
    directory = ServiceDirectory(
        HostMappings(lambda host: False, lambda host: next(answers))
    )
    found = []
    for _ in records:
        directory.read_records()
        found.append(directory.facts([C1])[C1].mapped)
    assert found == [True, True, False]


@pytest.mark.parametrize('reads', [[[1], [2]], [[1], [], [1]]])
def test_host_with_a_new_service_is_not_mapped_any_more(
    monkeypatch: pytest.MonkeyPatch, reads: list[list[int]]
) -> None:
    """Nova has deleted its mapping together with the former Service."""
    _answer(monkeypatch, *([_record(n) for n in read] for read in reads))
    mapped = iter([Mapped.YES, Mapped.NO])
    mappings = HostMappings(lambda host: False, lambda host: next(mapped))
    directory = ServiceDirectory(mappings)
    seen = []
    for _ in reads:
        directory.read_records()
        facts = directory.facts([C1])[C1]
        seen.append((facts.service_id, facts.mapped))
    assert seen[0] == (1, True)
    assert seen[-1] == (reads[-1][0], False)


def test_unsettled_pool_is_read_after_2_4_8_seconds_and_then_20() -> None:
    """A new host is mapped within seconds of its start, or much later."""
    poll = PollInterval(60.0)
    waits_s = [poll.next_s(is_settled=False) for _ in range(6)]
    assert waits_s == [2.0, 4.0, 8.0, 16.0, 20.0, 20.0]


def test_settled_pool_is_read_once_a_minute() -> None:
    """A pool that is unsettled after that is read after 2 s again."""
    poll = PollInterval(60.0)
    for _ in range(5):
        poll.next_s(is_settled=False)
    assert poll.next_s(is_settled=True) == 60.0
    assert poll.next_s(is_settled=False) == 2.0


def test_unsettled_pool_is_read_at_a_third_of_the_interval() -> None:
    """The first waits are not longer than a third of the option, either."""
    poll = PollInterval(3.0)
    assert poll.next_s(is_settled=False) == 1.0
    assert poll.next_s(is_settled=False) == 1.0
