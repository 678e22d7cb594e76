# SPDX-License-Identifier: Apache-2.0
"""A server's time to ACTIVE, compared with Ironic's own time."""

import pytest

from benchmarks import deploys, logs
from benchmarks.builds import Build

NODES = {'server-a': 'node-a', 'server-b': 'node-b'}


def moved(at_s, node, state, before):
    """Return the line of Ironic's conductor for a change of state."""
    return (
        f'2026-11-21 08:00:{at_s:06.3f} 7 INFO ironic.conductor.task_manager '
        f'[None req-1 - - - -] Node {node} moved to provision state '
        f'"{state}" from state "{before}"; target provision state is "x"'
    )


def deployed(begun_s, ended_s, node='node-a'):
    """Return the lines of a deploy."""
    return [
        moved(begun_s, node, 'deploying', 'available'),
        moved(begun_s + 0.1, node, 'wait call-back', 'deploying'),
        moved(begun_s + 0.2, node, 'deploying', 'wait call-back'),
        moved(ended_s, node, 'active', 'deploying'),
    ]


def active(at_s, server):
    """Return the line of Nova for a server that became ACTIVE."""
    return logs.Line(
        at_s,
        (7, 'build_0'),
        'req-1',
        'nova.compute.manager',
        f'[instance: {server}] Took 12.34 seconds to build instance.',
    )


def test_a_deploy_is_from_available_to_active():
    """A deploy lasts from available to active; an open one does not count."""
    lines = [
        'another line',
        *deployed(1.0, 7.5),
        moved(3.0, 'node-b', 'deploying', 'available'),
    ]
    (span,) = deploys.spans(lines).values()
    assert span.took_s == pytest.approx(6.5)


def test_a_rebuild_is_no_deploy():
    """A rebuild does not count, because its node was not available."""
    lines = [
        moved(1.0, 'node-a', 'deploying', 'active'),
        moved(3.0, 'node-a', 'active', 'deploying'),
    ]
    assert deploys.spans(lines) == {}


def test_second_deploy_counts():
    """Of two deploys of a node the later one counts."""
    failed = [
        moved(1.0, 'node-a', 'deploying', 'available'),
        moved(2.0, 'node-a', 'deploy failed', 'deploying'),
    ]
    (span,) = deploys.spans([*failed, *deployed(5.0, 6.0)]).values()
    assert span.took_s == pytest.approx(1.0)


def test_a_server_and_its_node_are_put_together():
    """Of two builds of a server the last counts; only ACTIVE ones do."""
    found = deploys.deploys(
        [active(20.0, 'server-a'), active(21.0, 'server-of-others')],
        [
            Build('server-a', 1.0, 1.5, 2.0),
            Build('server-a', 4.0, 6.0, 7.0),
            Build('server-b', 1.0, 1.5, 2.0),
        ],
        {'node-a': deploys.Span(8.0, 18.0), 'node-b': deploys.Span(8.0, 9.0)},
        NODES,
    )
    assert found == [deploys.Deploy(16.0, 2.0, 10.0)]
    assert found[0].over_s == pytest.approx(1.0)


def test_deploys_at_one_moment_are_counted():
    """A deploy that ends when another begins does not overlap it."""
    pairs = [(1.0, 3.0), (2.0, 4.0), (3.0, 5.0), (9.0, 10.0)]
    assert deploys.at_once([deploys.Span(*pair) for pair in pairs]) == 2
    assert deploys.at_once([]) == 0
