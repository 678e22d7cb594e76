# SPDX-License-Identifier: Apache-2.0
"""A host is mapped when Nova says so, and not because it says nothing."""

import types

import oslo_messaging
import pytest
from keystoneauth1 import exceptions as ks_exceptions
from nova import exception as nova_exception

from hashring.ring import Host
from ironic_compute.pool import host_mappings
from ironic_compute.pool.host_mappings import HostMappings, Mapped

C1 = Host('c1')


class _Says:
    """Gives its answers one after another, the last one again and again."""

    def __init__(self, *answers: Mapped) -> None:
        self._answers = list(answers)
        self.asked_count = 0

    def __call__(self, host: Host) -> Mapped:
        self.asked_count += 1
        more = len(self._answers) > 1
        return self._answers.pop(0) if more else self._answers[0]


def _nobody(host: Host) -> bool:
    return False


@pytest.mark.parametrize(
    ('error', 'meaning'),
    [
        (None, Mapped.YES),
        (nova_exception.HostMappingNotFound(name=C1), Mapped.NO),
        (oslo_messaging.MessagingTimeout(), Mapped.NO_ANSWER),
        (oslo_messaging.RemoteError('DBConnectionError'), Mapped.NO_ANSWER),
        (
            oslo_messaging.RemoteError('CantStartEngineError'),
            Mapped.UNREADABLE,
        ),
    ],
)
def test_conductor_without_api_database_alone_cannot_tell(
    error: Exception | None, meaning: Mapped
) -> None:
    """A conductor that is slow, or has lost its database, is asked again."""

    def read() -> None:
        if error is not None:
            raise error

    assert host_mappings.classify_conductor_read(read) is meaning


@pytest.mark.parametrize(
    ('status', 'text', 'meaning'),
    [
        (200, '{"host": []}', Mapped.YES),
        (404, nova_exception.ComputeHostNotFound(host=C1), Mapped.YES),
        (404, nova_exception.HostMappingNotFound(name=C1), Mapped.NO),
        (404, 'The resource could not be found.', Mapped.NO_ANSWER),
        (403, 'Policy does not allow', Mapped.UNREADABLE),
        (401, '', Mapped.UNREADABLE),
        (503, '', Mapped.NO_ANSWER),
    ],
)
def test_nova_api_has_two_ways_not_to_find_a_host(
    status: int, text: object, meaning: Mapped
) -> None:
    """One that is mapped and has no nodes yet is not found either."""
    answer = types.SimpleNamespace(status_code=status, text=str(text))
    assert host_mappings.classify_api_read(lambda: answer) is meaning


@pytest.mark.parametrize(
    ('error', 'meaning'),
    [
        (ks_exceptions.ConnectFailure(), Mapped.NO_ANSWER),
        (ks_exceptions.ConnectTimeout(), Mapped.NO_ANSWER),
        (ks_exceptions.EndpointNotFound(), Mapped.UNREADABLE),
        (ks_exceptions.MissingAuthPlugin(), Mapped.UNREADABLE),
    ],
)
def test_nova_api_that_is_away_says_nothing(
    error: Exception, meaning: Mapped
) -> None:
    """One that is not in the catalog will never say anything."""

    def get() -> None:
        raise error

    assert host_mappings.classify_api_read(get) is meaning


def test_silence_is_not_remembered() -> None:
    """Nova did not answer at first; the host is unmapped all the same."""
    conductor = _Says(Mapped.NO_ANSWER, Mapped.NO, Mapped.YES)
    found = HostMappings(_nobody, conductor, _Says(Mapped.NO_ANSWER))
    said = [found.is_mapped(C1) for _ in range(4)]
    assert said == [False, False, True, True]
    assert conductor.asked_count == 3


@pytest.mark.parametrize(
    ('answer', 'is_mapped'),
    [
        (Mapped.YES, True),
        (Mapped.NO, False),
        (Mapped.NO_ANSWER, False),
        (Mapped.UNREADABLE, False),
    ],
)
def test_nova_api_is_asked_where_no_conductor_can_tell(
    answer: Mapped, *, is_mapped: bool
) -> None:
    """Who may not ask it either knows nothing of the host."""
    found = HostMappings(_nobody, _Says(Mapped.UNREADABLE), _Says(answer))
    assert found.is_mapped(C1) is is_mapped


def test_unmapped_host_is_told_of_once_with_the_command(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Where nobody tells, the command is the one that says so."""
    found = HostMappings(
        _nobody, _Says(Mapped.UNREADABLE), _Says(Mapped.UNREADABLE)
    )
    assert not any(found.is_mapped(C1) for _ in range(3))
    (said,) = caplog.messages
    assert 'discover_hosts --by-service' in said
    assert said.endswith('ironic-computectl host mapped c1')


@pytest.mark.parametrize(
    ('answer', 'is_mapped', 'asked_count'),
    [
        (Mapped.UNREADABLE, True, 1),
        (Mapped.NO_ANSWER, True, 3),  # Nova may tell yet.
        (Mapped.NO, False, 3),
        (Mapped.YES, True, 1),
    ],
)
def test_operators_word_counts_where_nova_does_not_tell(
    answer: Mapped,
    *,
    is_mapped: bool,
    asked_count: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Where Nova does, its own word counts."""
    api = _Says(answer)
    found = HostMappings(
        lambda host: host == C1, _Says(Mapped.UNREADABLE), api
    )
    assert [found.is_mapped(C1) for _ in range(3)] == [is_mapped] * 3
    assert api.asked_count == asked_count
    assert len(caplog.messages) == (0 if is_mapped else 1)


def test_host_that_is_created_anew_is_asked_for_anew() -> None:
    """Nova deletes the mapping with the service."""
    conductor = _Says(Mapped.YES, Mapped.NO)
    found = HostMappings(_nobody, conductor, _Says(Mapped.NO_ANSWER))
    assert found.is_mapped(C1)
    found.forget_host(C1)
    assert not found.is_mapped(C1)
