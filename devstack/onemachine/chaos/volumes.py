# SPDX-License-Identifier: Apache-2.0
"""The scenario in which servers boot from volumes of a real Cinder.

Daemons are killed with builds and with deletes in flight. Each volume must
have one attachment and its node one volume target while the server lives. The
attachment must be gone with the server, the target with the next build.
"""

from collections.abc import Sequence
from typing import Any

from onemachine.chaos.scenarios import HOSTS, kill_and_return
from onemachine.chaos.stage import Stage
from onemachine.content import each
from onemachine.dials import Dials
from onemachine.progress import CloudError, step, wait_until
from onemachine.volumes import create_volumes

_SERVERS_COUNT = 10
# Seconds, twice in each deploy of the fake hardware.
_DEPLOY_DELAY_S = 20
_PATIENCE_S = 300.0


def volumes(stage: Stage) -> None:
    """Servers boot from volumes, and daemons are killed meanwhile."""
    dials = Dials(stage.cloud.layout)
    before = dials.read()['volumes']
    dials.turn('volumes', 'on')
    try:
        stage.cloud.up()
        stage.connect()
        stage.restart(HOSTS)
        stage.dial('deploy-delay', str(_DEPLOY_DELAY_S))
        _play(stage)
    finally:
        stage.dial('deploy-delay', '0')
        dials.turn('volumes', before)
        stage.cloud.up()
        stage.restart(HOSTS)


def _play(stage: Stage) -> None:
    storage, report = stage.content.cloud.block_storage, stage.report
    connect_nodes(stage)
    with stage.act('volumes', HOSTS) as pings:
        made = create_volumes(stage.content.cloud, _SERVERS_COUNT)
        names = [f'from-volume-{number}' for number in range(len(made))]
        servers = stage.content.create_from_volumes(names, made)
        _await_begun(stage, servers)
        kill_and_return(stage, pings)
        report.none('builds that failed', _failures(stage, servers))
        report.none(
            'volumes without the one attachment', _unused(storage, made)
        )
        report.none('nodes without the one target', _untold(stage, made))
        each(stage.content.cloud.compute.delete_server, servers)
        kill_and_return(stage, pings)
        stage.content.await_gone(servers, _PATIENCE_S)
        report.none('volumes still in use', _kept(storage, made))
        each(storage.delete_volume, made)
        _boot_from_image(stage)
        report.none('volume targets after the next build', _targets(stage))
    stage.clear()


def _boot_from_image(stage: Stage) -> None:
    """Boot a server on each node.

    Ironic deletes no target while a machine has power, which the fake hardware
    keeps after a server: so the next build deletes it.
    """
    stage.await_offered()
    nodes_count = len(stage.content.nodes())
    names = [f'from-image-{number}' for number in range(nodes_count)]
    stage.content.boot_all(names, _PATIENCE_S)


def connect_nodes(stage: Stage) -> None:
    """Give each node the connector by which Cinder knows its machine."""
    metal = stage.content.metal
    known = {one.node_id for one in metal.volume_connectors(details=True)}
    for node in stage.content.nodes().keys() - known:
        metal.create_volume_connector(
            node_id=node, type='iqn', connector_id=f'iqn.2026-01.test:{node}'
        )


def _await_begun(stage: Stage, servers: Sequence[Any]) -> None:
    wanted = {server.id for server in servers}

    def have_begun() -> bool:
        nodes = stage.content.nodes().values()
        deploying = {n.instance_id for n in nodes if n.instance_id}
        return wanted <= deploying

    with step('Waiting until all builds have a node'):
        wait_until('a node for each build', have_begun, 120)


def _failures(stage: Stage, servers: Sequence[Any]) -> list[str]:
    found = []
    for server in servers:
        try:
            stage.content.await_active(server.id, _PATIENCE_S)
        except CloudError as exc:
            found.append(str(exc))
    return found


def _unused(storage: Any, made: Sequence[Any]) -> list[str]:
    seen = [storage.get_volume(volume.id) for volume in made]
    return [
        f'{v.id} is {v.status} with {len(v.attachments)}'
        for v in seen
        if v.status != 'in-use' or len(v.attachments) != 1
    ]


def _kept(storage: Any, made: Sequence[Any]) -> list[str]:
    seen = [storage.get_volume(volume.id) for volume in made]
    return [f'{v.id} is {v.status}' for v in seen if _is_kept(v)]


def _is_kept(volume: Any) -> bool:
    return bool(volume.status != 'available' or volume.attachments)


def _targets(stage: Stage) -> list[str]:
    found = stage.content.metal.volume_targets(details=True)
    return [f'{one.volume_id} of node {one.node_id}' for one in found]


def _untold(stage: Stage, made: Sequence[Any]) -> list[str]:
    """Return the volumes that not exactly one node has as its target."""
    found = stage.content.metal.volume_targets(details=True)
    told = [target.volume_id for target in found]
    return [v.id for v in made if told.count(v.id) != 1]
