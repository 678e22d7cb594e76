# SPDX-License-Identifier: Apache-2.0
"""Nova's Service records, and the time between two reads of them."""

import types
from typing import Any

import pytest
from nova import objects

from hashring.ring import Host
from ironic_compute.pool.host_mappings import HostMappings, Mapped
from ironic_compute.pool.services import PollInterval, ServiceDirectory

C1 = Host('c1')
objects.register_all()


def _record(number: int) -> Any:
    return types.SimpleNamespace(id=number, host=C1, disabled=False)


@pytest.mark.parametrize('reads', [[[1], [2]], [[1], [], [1]]])
def test_host_with_a_new_service_is_not_mapped_any_more(
    monkeypatch: pytest.MonkeyPatch, reads: list[list[int]]
) -> None:
    """Nova has deleted its mapping together with the former Service."""
    answers = iter([[_record(n) for n in read] for read in reads])
    monkeypatch.setattr(
        objects.ServiceList,
        'get_by_binary',
        lambda context, binary, include_disabled: next(answers),
    )
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
