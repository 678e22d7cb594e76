# SPDX-License-Identifier: Apache-2.0
"""Figures of the nodes of one host, taken from the metrics of its worker.

The status page and ``/api/v1/nodes`` show them. A worker sends its metrics as
text, so the agent needs no other way to them. Pure.
"""

import collections
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import parser
from prometheus_client.samples import Sample

from hashring.paths import Path
from hashring.ring import Host

_NODES = 'ironic_compute_nodes'
_SERVERS = 'ironic_compute_servers'
_MISPLACED = 'ironic_compute_misplaced_nodes'
_DIRTY = 'ironic_compute_dirty_nodes'
_OLDEST = 'ironic_compute_oldest_dirty_seconds'
_PATHS = 'ironic_compute_path_failing_seconds'
_FINDINGS = 'ironic_compute_findings'
_READ = tuple(
    f'{name}{{'
    for name in (
        *(_NODES, _SERVERS, _MISPLACED, _DIRTY, _OLDEST),
        *(_PATHS, _FINDINGS),
    )
)


@dataclasses.dataclass(frozen=True, slots=True)
class HostFigures:
    """The numbers of nodes that one host holds."""

    nodes: int = 0
    servers: int = 0
    """Those with a server."""
    without_class: int = 0
    """Available nodes without a resource class, which no build can get."""
    moving: Mapping[Host, int] = dataclasses.field(default_factory=dict)
    """Host -> free nodes that are being pushed to it."""
    staying: Mapping[Host, int] = dataclasses.field(default_factory=dict)
    """Host -> nodes that the ring gives to it, and that have a server."""
    dirty: int = 0
    """Nodes with a change that is not in Placement yet."""
    oldest_dirty_s: float = 0.0
    failing_paths: Mapping[Path, float] = dataclasses.field(
        default_factory=dict
    )
    """Service that the worker does not reach -> since how many seconds."""
    findings: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Name of a check of fsck -> nodes that it finds, if there are any."""

    def as_json(self) -> dict[str, Any]:
        """Return the figures as JSON values."""
        return dataclasses.asdict(self)


def parse(text: str) -> HostFigures:
    """Return the figures in the metrics of one worker.

    :param text: in the text format of Prometheus
    :raises ValueError: it has another format
    """
    sums: dict[str, float] = collections.defaultdict(float)
    without_class = 0
    moving: dict[Host, int] = {}
    staying: dict[Host, int] = {}
    paths: dict[Path, float] = {}
    findings: dict[str, int] = {}
    for sample in _samples(text):
        sums[sample.name] += sample.value
        if sample.name == _MISPLACED:
            has_server = sample.labels['server'] == 'true'
            into = staying if has_server else moving
            into[Host(sample.labels['target'])] = int(sample.value)
        elif sample.name == _PATHS and sample.value > 0:
            paths[Path(sample.labels['path'])] = sample.value
        elif sample.name == _FINDINGS and sample.value > 0:
            findings[sample.labels['check']] = int(sample.value)
        elif sample.name == _NODES and _is_classless(sample):
            without_class += int(sample.value)
    return HostFigures(
        nodes=int(sums[_NODES]),
        servers=int(sums[_SERVERS]),
        without_class=without_class,
        moving=moving,
        staying=staying,
        dirty=int(sums[_DIRTY]),
        oldest_dirty_s=sums[_OLDEST],
        failing_paths=paths,
        findings=findings,
    )


def _samples(text: str) -> Iterator[Sample]:
    # Only the few lines that are needed, because the parser takes some 20 ms
    # for all metrics of a worker.
    lines = [line for line in text.split('\n') if line.startswith(_READ)]
    for family in parser.text_string_to_metric_families('\n'.join(lines)):
        yield from family.samples


def _is_classless(sample: Sample) -> bool:
    labels = sample.labels
    return not labels['resource_class'] and labels['state'] == 'available'


def ring_shares(
    figures: Mapping[Host, HostFigures],
) -> dict[Host, int]:
    """Return how many nodes the ring gives to each host.

    :param figures: those of all hosts that hold nodes
    """
    shares: dict[Host, int] = collections.defaultdict(int)
    for host, each in figures.items():
        shares[host] += each.nodes
        for elsewhere in (each.moving, each.staying):
            for target, count in elsewhere.items():
                shares[host] -= count
                shares[target] += count
    return dict(shares)
