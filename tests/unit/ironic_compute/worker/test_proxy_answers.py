# SPDX-License-Identifier: Apache-2.0
"""Answers of a proxy in place of a service that Nova's code asks."""

import io
from typing import Any

import pytest
import requests
from cinderclient import api_versions
from cinderclient import exceptions as cinder_exceptions
from cinderclient.v3 import client as cinder_client
from keystoneauth1 import noauth, session

from ironic_compute.manager.retries import has_no_answer
from ironic_compute.worker import proxy_answers

_OF_CINDER = '{"itemNotFound": {"code": 404, "message": "no attachment"}}'


class _Service(requests.adapters.BaseAdapter):
    """Answers each request in one way."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__()
        self._text, self._status = text, status

    def send(self, request: Any, *_: Any, **__: Any) -> requests.Response:
        """Answer a request."""
        response = requests.Response()
        response.request, response.url = request, request.url
        response.status_code = self._status
        response.raw = io.BytesIO(self._text.encode())
        return response

    def close(self) -> None:
        """Close nothing."""


def _delete_attachment(
    text: str, status: int = 404
) -> cinder_exceptions.ClientException:
    """Delete an attachment as Nova does; return the error."""
    sent = session.Session(auth=noauth.NoAuth())
    sent.session.mount('http://', _Service(text, status))
    sent.request = proxy_answers.as_unavailable(sent.request)
    client = cinder_client.Client(
        session=sent,
        endpoint_override='http://cinder/v3',
        api_version=api_versions.APIVersion('3.44'),
    )
    with pytest.raises(cinder_exceptions.ClientException) as raised:
        client.attachments.delete('a1')
    return raised.value


@pytest.mark.parametrize('text', ['<html>Not Found</html>', '', '[]'])
def test_404_of_a_proxy_is_no_answer(text: str) -> None:
    """Nova took the attachment for deleted, and the volume kept it."""
    assert has_no_answer(_delete_attachment(text))


def test_page_with_status_200_is_no_answer() -> None:
    """Some proxies show one for a maintenance; it counted as success."""
    assert has_no_answer(_delete_attachment('\n<html>Soon</html>', 200))


def test_404_of_cinder_is_an_answer() -> None:
    """The attachment may have been deleted before."""
    error = _delete_attachment(_OF_CINDER)
    assert error.code == 404
    assert not has_no_answer(error)
