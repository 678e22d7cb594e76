# SPDX-License-Identifier: Apache-2.0
"""Host mappings, read from nova-conductor, nova-api and the operator."""

import types

import oslo_messaging
import pytest
from keystoneauth1 import exceptions as ks_exceptions
from nova import exception as nova_exception

from hashring.ring import Host
from ironic_compute.pool import host_mappings
from ironic_compute.pool.host_mappings import HostMappings, Mapped

C1 = Host('c1')


class _Reads:
    """Returns its answers one after another, and the last one for ever."""

    def __init__(self, *answers: Mapped) -> None:
        self._answers = list(answers)
        self.reads_count = 0

    def __call__(self, host: Host) -> Mapped:
        self.reads_count += 1
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
def test_only_a_conductor_without_api_database_is_unreadable(
    error: Exception | None, meaning: Mapped
) -> None:
    """A conductor that is slow or has lost its database is read again."""

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
def test_404_of_nova_api_means_mapped_or_unmapped(
    status: int, text: object, meaning: Mapped
) -> None:
    """nova-api answers 404 for a mapped host without nodes, too."""
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
def test_nova_api_out_of_reach_is_no_answer(
    error: Exception, meaning: Mapped
) -> None:
    """A nova-api that is missing in the catalog is unreadable for good."""

    def get() -> None:
        raise error

    assert host_mappings.classify_api_read(get) is meaning


def test_unmapped_host_is_read_again_until_it_is_mapped() -> None:
    """A mapping is read at each call until Nova has it, then never."""
    conductor = _Reads(Mapped.NO_ANSWER, Mapped.NO, Mapped.YES)
    found = HostMappings(_nobody, conductor, _Reads(Mapped.NO_ANSWER))
    mapped = [found.is_mapped(C1) for _ in range(4)]
    assert mapped == [False, False, True, True]
    assert conductor.reads_count == 3


@pytest.mark.parametrize(
    ('answer', 'is_mapped'),
    [
        (Mapped.YES, True),
        (Mapped.NO, False),
        (Mapped.NO_ANSWER, False),
        (Mapped.UNREADABLE, False),
    ],
)
def test_nova_api_is_read_if_the_conductor_is_unreadable(
    answer: Mapped, *, is_mapped: bool
) -> None:
    """A host is unmapped if nova-api does not allow the request either."""
    found = HostMappings(_nobody, _Reads(Mapped.UNREADABLE), _Reads(answer))
    assert found.is_mapped(C1) is is_mapped


def test_unreadable_mapping_is_logged_once_with_the_command(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The warning names the command that confirms the mapping."""
    found = HostMappings(
        _nobody, _Reads(Mapped.UNREADABLE), _Reads(Mapped.UNREADABLE)
    )
    assert not any(found.is_mapped(C1) for _ in range(3))
    (logged,) = caplog.messages
    assert 'discover_hosts --by-service' in logged
    assert logged.endswith('ironic-computectl host mapped c1')


@pytest.mark.parametrize(
    ('answer', 'is_mapped', 'reads_count'),
    [
        (Mapped.UNREADABLE, True, 1),
        (Mapped.NO_ANSWER, True, 3),  # Nova may answer later.
        (Mapped.NO, False, 3),
        (Mapped.YES, True, 1),
    ],
)
def test_confirmed_mapping_counts_if_nova_has_no_answer(
    answer: Mapped,
    *,
    is_mapped: bool,
    reads_count: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An answer of Nova overrules the confirmation of the operator."""
    api = _Reads(answer)
    found = HostMappings(
        lambda host: host == C1, _Reads(Mapped.UNREADABLE), api
    )
    assert [found.is_mapped(C1) for _ in range(3)] == [is_mapped] * 3
    assert api.reads_count == reads_count
    assert len(caplog.messages) == (0 if is_mapped else 1)


def test_mapping_of_a_recreated_host_is_read_again() -> None:
    """Nova deletes the host mapping together with the Service record."""
    conductor = _Reads(Mapped.YES, Mapped.NO)
    found = HostMappings(_nobody, conductor, _Reads(Mapped.NO_ANSWER))
    assert found.is_mapped(C1)
    found.forget_host(C1)
    assert not found.is_mapped(C1)
