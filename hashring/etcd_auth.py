# SPDX-License-Identifier: Apache-2.0
"""Etcd with a password: a token for each request, renewed when it has ended.

tooz's driver of etcd knows no password. etcd's gateway gives a token for a
name and a password, and wants it in a header of each other request. A token
ends after some minutes without a request, when a member restarts, and when
users or roles change. Any thread may make requests.
"""

import http
import threading
from typing import Any

from hashring import errors
from hashring.backend import OPTION, Credentials

# The text of etcd's error after a change of users or roles.
_OLD = 'revision of auth store is old'


class EtcdAuth:
    """Gives each request a token; repeats a refused one with a new token.

    An instance is the ``auth`` of a session of requests.

    :param client: etcd3gw's client, whose server may change
    """

    def __init__(self, client: Any, credentials: Credentials) -> None:
        self._client = client
        self._credentials = credentials
        self._token = ''
        self._lock = threading.Lock()

    def __call__(self, request: Any) -> Any:
        """Add the token to a prepared request."""
        # Anybody may ask for the version; the client does so first of all.
        if request.path_url != '/version':
            request.headers['Authorization'] = self._token or self._renewed('')
            request.register_hook('response', self._repeat_if_refused)
        return request

    def _repeat_if_refused(self, response: Any, **options: Any) -> Any:
        if not _is_token_refused(response):
            return response
        again = response.request.copy()
        former = again.headers['Authorization']
        again.headers['Authorization'] = self._renewed(former)
        response.close()
        return response.connection.send(again, **options)

    def _renewed(self, former: str) -> str:
        """Return a token that is not the former one.

        :raises BackendUnavailable: etcd gives none
        """
        with self._lock:
            if self._token == former:
                self._token = self._authenticate()
            return self._token

    def _authenticate(self) -> str:
        answer = self._client.session.post(
            f'{self._client.base_url}/v3/auth/authenticate',
            json={
                'name': self._credentials.user,
                'password': self._credentials.password,
            },
            timeout=self._client.timeout,
            auth=_without_token,
        )
        if answer.status_code == http.HTTPStatus.OK:
            return str(answer.json()['token'])
        raise errors.BackendUnavailable(
            f'etcd refuses the user {self._credentials.user} of {OPTION}: '
            f'{answer.json().get("error", answer.reason)}'
        )


def _without_token(request: Any) -> Any:
    """Be the ``auth`` of the request for a token."""
    return request


def _is_token_refused(response: Any) -> bool:
    if response.status_code == http.HTTPStatus.BAD_REQUEST:
        return _OLD in response.text
    return bool(response.status_code == http.HTTPStatus.UNAUTHORIZED)
