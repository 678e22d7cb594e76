# SPDX-License-Identifier: Apache-2.0
"""Many servers at once on nodes with slow deploys."""

import time

from benchmarks import builds, deploys, logs
from benchmarks.parts import servers
from benchmarks.parts.changes import POINTS, dials
from benchmarks.stage import Note, Stage
from benchmarks.window import Window

# Seconds after which the last lines are in the log file.
_LOG_DELAY_S = 2.0


def slow(stage: Stage, note: Note) -> None:
    """Boot servers, compare their times with Ironic's, and delete them."""
    with dials(stage, {'deploy-delay': str(stage.plan.deploy_delay_s)}):
        stage.have()
        _measure(stage, note)
    servers.clear(stage.content, stage.plan.boot_max_s)


def _measure(stage: Stage, note: Note) -> None:
    layout = stage.subject.layout
    of_nova = logs.Tail(layout.log(stage.subject.name))
    of_ironic = logs.Tail(layout.log('ironic-conductor'))
    window = Window(stage.subject)
    count = min(stage.plan.deploys_count, stage.nodes_count)
    asked = servers.Boots(stage, count)
    asked.await_all(note, 'deploy')
    requests = window.counts()['ironic']
    for who, cpu_s in window.cpu_s().items():
        note.figure(f'deploy_{who}_cpu_s', cpu_s)
    time.sleep(_LOG_DELAY_S)
    lines = logs.parsed(of_nova.lines())
    spans = deploys.spans(of_ironic.lines())
    note.figure('deploy_retried_count', builds.sent_again(lines).total())
    note.figure('deploy_at_once', deploys.at_once(list(spans.values())))
    note.figure('deploy_ironic_requests', requests.total() / count)
    note.detail(
        'deploy ironic', {kind: n / count for kind, n in requests.items()}
    )
    _note_times(
        note,
        deploys.deploys(
            lines,
            builds.builds(lines, stage.subject.ports),
            spans,
            _nodes_by_server(stage),
        ),
    )


def _note_times(note: Note, found: list[deploys.Deploy]) -> None:
    note.figure('deploy_timed_count', len(found))
    for name, values in (
        ('waited', [one.waited_s for one in found]),
        ('own', [one.ironic_s for one in found]),
        ('active', [one.active_s for one in found]),
        ('over', [one.over_s for one in found]),
    ):
        note.spread(f'deploy_{name}_s', values, POINTS)


def _nodes_by_server(stage: Stage) -> dict[str, str]:
    nodes = stage.content.nodes().items()
    return {n.instance_id: node for node, n in nodes if n.instance_id}
