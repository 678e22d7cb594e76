# SPDX-License-Identifier: Apache-2.0
"""A fake Ironic for the real python-ironicclient: scripted HTTP answers."""

import json

URL = 'http://ironic.test:6385'
NODE = 'aaaaaaaa-0000-4000-8000-000000000001'
OTHER = 'aaaaaaaa-0000-4000-8000-000000000002'
SERVER = 'bbbbbbbb-0000-4000-8000-000000000001'


class ScriptedHttp:
    """An Ironic with scripted answers, all with the content type JSON."""

    def __init__(self, mocker):
        self._mocker = mocker

    def __getattr__(self, method):
        register = getattr(self._mocker, method)
        if method not in ('get', 'put', 'post', 'patch', 'delete'):
            return register

        def script(url, answers=None, **answer):
            answers = [self._as_json(a) for a in answers or [answer]]
            return register(url, answers)

        return script

    def _as_json(self, answer):
        if 'exc' in answer:
            return answer
        headers = {'Content-Type': 'application/json'}
        return {**answer, 'headers': {**headers, **answer.get('headers', {})}}


def versions(http, highest, lowest='1.1'):
    """Script the range of API versions that Ironic supports."""
    headers = {
        'X-OpenStack-Ironic-API-Minimum-Version': lowest,
        'X-OpenStack-Ironic-API-Maximum-Version': highest,
    }
    http.get(f'{URL}/v1', headers=headers, json={})


def fault(text):
    """Return the body of an error in Ironic's format."""
    return {'error_message': json.dumps({'faultstring': text})}


def record(uuid=NODE, **fields):
    """Return a node in the format of Ironic's API."""
    return {'uuid': uuid, 'provision_state': 'available', **fields}


LOCKED = fault(f'Node {NODE} is locked by host c1, please retry after ...')
NO_CONDUCTOR = fault(
    'No valid host was found. Reason: No conductor service registered which '
    'supports driver ipmi for conductor group "rack1". Ensure the driver is '
    'valid and enabled.'
)
