# SPDX-License-Identifier: Apache-2.0
"""Failures: why a request to the backend failed, from its client's error.

Errors of the client libraries often have no text, or say less than the server
has said. This module knows them by their names and attributes, because a
library is installed only if its backend is used. Pure.
"""

import json


def reason(exc: BaseException) -> str:
    """Return the text of an error; without one, what its first cause says.

    etcd3gw's errors have no text, and are about any failure of a connection;
    of an answer they have the status, and the text in an attribute. kazoo's
    have none either, but each has a class of its own.
    """
    first = _first_cause(exc)
    if str(exc):
        answer = _answer(first)
        return f'{exc} ({answer})' if answer else str(exc)
    name = type(exc).__name__
    cause = str(first) or type(first).__name__
    return name if first is exc else f'{name}: {cause}'


def is_refusal(exc: BaseException) -> bool:
    """Return whether etcd has answered that it does not do what was asked.

    etcd3gw has classes of their own for the answers of a server that does not
    work, or is cut off from the others.
    """
    first = _first_cause(exc)
    return type(first).__name__ == 'Etcd3Exception' and bool(_answer(first))


def _first_cause(exc: BaseException) -> BaseException:
    first = exc
    while first.__cause__ or first.__context__:
        first = first.__cause__ or first.__context__ or first
    return first


def _answer(exc: BaseException) -> str:
    """Return the sentence of etcd in an error of etcd3gw; '' if none."""
    try:
        return str(json.loads(getattr(exc, 'detail_text', ''))['error'])
    except (KeyError, TypeError, ValueError):
        return ''
