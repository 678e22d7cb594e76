# SPDX-License-Identifier: Apache-2.0
"""Counts of requests and RPCs in the logs of the services."""

import pytest

from benchmarks import logs

NODE = 'e9acef4c-2fae-4f0e-82fc-d44b18b13a78'


def access(method, path, status=200):
    """Return a line of uWSGI's access log."""
    return (
        f'[pid: 23183|app: 0|req: 3239/3238] 127.0.0.1 () {{34 vars in 787 '
        f'bytes}} [Sat Nov 21 08:24:24 2026] {method} {path} => generated '
        f'172 bytes in 30 msecs (HTTP/1.1 {status}) 8 headers in 296 bytes '
        f'(1 switches on core 0)'
    )


# Placement and Ironic also log each request in a format of their own.
OTHER_LINES = [
    '2026-11-21 08:24:24.621 23183 INFO placement.requestlog [None req-1] '
    f'127.0.0.1 "PUT /resource_providers/{NODE}/inventories" status: 200',
    '2026-11-21 08:24:24.330 23189 INFO ironic.api [None req-6] 127.0.0.1 - '
    f'GET /v1/nodes/{NODE} - 200 (17.73ms)',
    '',
    '[pid: 1|',
]


def test_each_request_counts_once():
    """Requests count by method and kind, not by node."""
    path = f'/resource_providers/{NODE}/inventories'
    lines = [
        access('PUT', path),
        access('PUT', path.replace('e9', 'e8'), 409),
        access('GET', '/resource_providers?name=in:A'),
        *OTHER_LINES,
    ]
    assert logs.requests(lines) == {
        'PUT /resource_providers/…/inventories': 2,
        'GET /resource_providers?': 1,
    }


@pytest.mark.parametrize(
    ('path', 'kind'),
    [
        ('/v1/nodes', '/v1/nodes'),
        ('/v1/nodes?limit=20&sort_dir=desc', '/v1/nodes?'),
        (f'/v1/nodes/{NODE}/states/power', '/v1/nodes/…/states/power'),
        (f'/allocations/{NODE.replace("-", "")}', '/allocations/…'),
        ('/resource_classes/CUSTOM_A', '/resource_classes/CUSTOM_A'),
    ],
)
def test_kind_names_no_single_thing(path, kind):
    """The kind of a path has no uuid and no value of a query."""
    assert logs.kind_of(path) == kind


def line(thread, text, request=''):
    """Return a log line of a compute process."""
    return (
        f'2026-11-21 08:00:00.100 7 DEBUG benchmarks.rpc'
        f' [thread:{thread}] [{request}] {text}'
    )


def call(method):
    """Return the line of ``rpc_log`` at the begin of a call."""
    return f'RPC begins: conductor {method}'


def test_rpcs_are_counted_by_cause():
    """RPCs count by our thread, or by Nova's periodic task."""
    lines = [
        line('services', call('object_class_action_versions')),
        line('services', 'RPC ends: conductor object_class_action_versions'),
        line('rows_3', call('object_action')),
        line('Thread-7', 'Running periodic task ComputeManager._a', 'req-1'),
        line(
            'Thread-7', 'Running periodic task ComputeManager._poll', 'req-1'
        ),
        line('Thread-7', call('object_class_action_versions'), 'req-1'),
        # Nova 34 lets several threads report its nodes.
        line('Thread-9', call('object_class_action_versions'), 'req-1'),
        line('Thread-8', call('object_action')),
        line('Thread-6', 'RPC cast: scheduler sync_instance_info'),
        'RPC begins: conductor of_a_line_without_its_thread',
    ]
    counts = logs.rpcs(lines)
    assert counts == {
        'services: conductor object_class_action_versions': 1,
        'rows: conductor object_action': 1,
        'ComputeManager._poll: conductor object_class_action_versions': 2,
        'Thread: conductor object_action': 1,
        'Thread: scheduler sync_instance_info': 1,
    }
    assert logs.of_our_own(counts) == 2


def test_tally_counts_from_its_making(tmp_path):
    """A tally counts complete lines that were added after its creation."""
    path = tmp_path / 'log'
    path.write_text(access('GET', '/old') + '\n')
    tally = logs.Tally(path, logs.requests)
    whole, half = access('GET', '/new'), access('PUT', '/late')
    with path.open('a') as file:
        file.write(f'{whole}\n{half[:40]}')
        file.flush()
        assert tally.counts() == {'GET /new': 1}
        file.write(half[40:] + '\n')
    assert tally.counts() == {'GET /new': 1, 'PUT /late': 1}
    assert tally.counts().total() == 2


def test_tally_of_a_file_that_is_to_come(tmp_path):
    """The file of a tally may be created after the tally."""
    tally = logs.Tally(tmp_path / 'log', logs.requests)
    assert tally.counts() == {}
    (tmp_path / 'log').write_text(access('GET', '/new') + '\n')
    assert tally.counts().total() == 1
