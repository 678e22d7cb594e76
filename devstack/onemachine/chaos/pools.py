# SPDX-License-Identifier: Apache-2.0
"""Two pools beside each other: each has the nodes of one shard."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from onemachine import content
from onemachine.chaos import proxy
from onemachine.chaos.orders import Operator
from onemachine.chaos.scenarios import HOSTS
from onemachine.chaos.stage import ALL_HOSTS, Stage
from onemachine.computes import Computes

OTHERS = ALL_HOSTS[3:5]
SHARD, OTHER_SHARD = 'rack-1', 'rack-2'
# Hosts that are never started, for the files of an operator's commands.
_OPERATOR, _OTHER_OPERATOR = 'operator', 'operator-2'
_NOBODY, _ASTRAY = 'operator-nobody', 'operator-astray'
_SHARDS = {
    **dict.fromkeys((*OTHERS, _OTHER_OPERATOR), OTHER_SHARD),
    _NOBODY: 'rack-3',
}
# Nothing listens there.
_NO_BACKEND = 'etcd3+http://127.0.0.1:9'


def rewrite(
    host: str, sections: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return the sections of a host's files, with the shard of its pool."""
    found = {name: dict(options) for name, options in sections.items()}
    if 'ironic' in found:
        found['ironic']['shard'] = _SHARDS.get(host, SHARD)
    if 'ironic_compute' in found:
        # The state of the pool of all shards is another one.
        path = found['ironic_compute']['state_path']
        found['ironic_compute']['state_path'] = f'{path}-of-shard'
    if 'coordination' in found and host == _ASTRAY:
        found['coordination']['backend_url'] = _NO_BACKEND
    return found


class Pools:
    """The operators of two pools, and of none."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.operator = self._operator(_OPERATOR)
        self.other_operator = self._operator(_OTHER_OPERATOR)
        self.without_daemon = self._operator(_NOBODY)
        self.without_backend = self._operator(_ASTRAY)

    def _operator(self, name: str) -> Operator:
        stage = self._stage
        files = stage.computes.write_agent(name)
        return Operator(stage.cloud.layout, files)

    def set_shard(self, nodes: Sequence[str], shard: str | None) -> None:
        """Set the shard of nodes in Ironic, as an operator does."""
        metal = self._stage.content.metal
        content.each(lambda node: metal.update_node(node, shard=shard), nodes)


@contextlib.contextmanager
def two_pools(stage: Stage) -> Iterator[Pools]:
    """Run two pools meanwhile: three hosts with all nodes, two with none."""
    former = stage.computes
    addresses = {h: proxy.address(n) for n, h in enumerate(ALL_HOSTS)}
    stage.running.stop(HOSTS)
    stage.computes = Computes(stage.cloud, addresses, rewrite=rewrite)
    pools = Pools(stage)
    nodes = list(stage.content.nodes())
    # A stopped server that was deleted has left its node without power.
    stage.content.power_on()
    try:
        pools.set_shard(nodes, SHARD)
        stage.start(ALL_HOSTS)
        stage.await_offered()
        yield pools
    finally:
        stage.running.stop(stage.running.hosts())
        stage.computes = former
        stage.content.forget_hosts(but=HOSTS)
        pools.set_shard(nodes, None)
        stage.start(HOSTS)
