# SPDX-License-Identifier: Apache-2.0
"""Why a request failed, from errors as the client libraries raise them."""

import pytest

from hashring.failures import is_refusal, reason


class Etcd3Exception(Exception):
    """The class of etcd3gw with this name."""

    def __init__(self, detail_text: str | None, *args: object) -> None:
        super().__init__(*args)
        self.detail_text = detail_text


class ConnectionFailedError(Etcd3Exception):
    """The class of etcd3gw with this name."""


FULL = Etcd3Exception(
    '{"error": "etcdserver: mvcc: database space exceeded", "code": 8}',
    'Too Many Requests',
)
LOST = ConnectionFailedError(
    '{"error": "etcdserver: no leader", "code": 14}', 'Service Unavailable'
)


def translated(cause: Exception) -> Exception:
    """Return the error that tooz makes of an error of its library."""
    made = RuntimeError(str(cause))
    made.__cause__ = cause
    return made


@pytest.mark.parametrize(
    ('cause', 'text', 'refused'),
    [
        (
            FULL,
            'Too Many Requests (etcdserver: mvcc: database space exceeded)',
            True,
        ),
        (LOST, 'Service Unavailable (etcdserver: no leader)', False),
        (Etcd3Exception('<html>', 'Not Found'), 'Not Found', False),
        (Etcd3Exception('[1]', 'Not Found'), 'Not Found', False),
        (Etcd3Exception(None, 'Not Found'), 'Not Found', False),
        (OSError('no route'), 'no route', False),
    ],
)
def test_answer_of_etcd_is_the_reason(
    cause: Exception, text: str, refused: bool
) -> None:
    """etcd's gateway has a status for many errors, which says little."""
    for exc in (cause, translated(cause)):
        assert reason(exc) == text
        assert is_refusal(exc) is refused


def test_error_without_a_text_has_that_of_its_first_cause() -> None:
    """etcd3gw's errors about connections have none."""
    error = translated(ConnectionFailedError('refused'))
    error.__cause__.__cause__ = OSError('no route')  # type: ignore[union-attr]
    assert reason(error) == 'RuntimeError: no route'
    assert reason(TimeoutError()) == 'TimeoutError'
