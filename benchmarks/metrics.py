# SPDX-License-Identifier: Apache-2.0
"""The rows of the table of results: title of each figure, in order.

Figures that belong together share a row, as p50 / p95 / max.
"""

import dataclasses
from collections.abc import Sequence

from benchmarks.results import PARTS

_CHANGES = {
    'maintenance_set': 'maintenance set',
    'maintenance_unset': 'maintenance unset',
    'trait_added': 'trait added',
    'trait_removed': 'trait removed',
    'class_removed': 'resource class removed',
    'class_set': 'resource class set',
    'withdrawn': 'made manageable',
    'available': 'available after cleaning',
}
_MODES = {
    'notified': 'with notifications',
    'quiet': 'without notifications',
    'burst': 'in a burst, during audits',
}
_BUILDS = {
    'boot': 'boot at once',
    'claims': 'boot one after the other, during audits',
    'clean_boot': 'boot, others deleted meanwhile',
    'adoption_boot': 'boot while adopted nodes are verified',
}


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One row of the table.

    :param names: the names of the figures; ours and stock are compared by the
        first
    :param points: the labels of the figures if the row has several, such as
        p50
    """

    title: str
    names: Sequence[str]
    points: str = ''


def _one(name: str, title: str) -> Row:
    return Row(title, (name,))


def _spread(name: str, title: str, *points: str) -> Row:
    names = tuple(f'{name}_{point}' for point in points)
    return Row(title, names, ' / '.join(points))


def _window(part: str, titles: dict[str, str]) -> list[Row]:
    return [_one(f'{part}_{what}', title) for what, title in titles.items()]


_COUNTED = {
    'placement': '… requests to Placement',
    'ironic': '… requests to Ironic',
    'rpc': '… RPCs',
    'worker_cpu_s': '… CPU of the worker, s',
    'client_cpu_s': '… CPU of the worker and its family, s',
    'server_cpu_s': '… CPU of all servers, s',
}
_REPORTS = [
    _one('first_s', 'first report of all nodes: seconds'),
    *_window('first', _COUNTED),
    _one('first_placement_per_node', '… requests to Placement a node'),
    _one('first_rpc_per_node', '… RPCs a node'),
    _one('arrival_s', 'enrolled at once, all but 50: seconds'),
    *_window('arrival', _COUNTED),
    _one(
        'arrival_per_server_cpu',
        "… seconds / (servers' CPU seconds / processors)",
    ),
    *_window(
        'idle',
        {
            'placement_per_min': 'idle: requests to Placement a minute',
            'ironic_per_min': '… requests to Ironic a minute',
            'rpc_per_min': '… RPCs a minute',
            'own_rpc_per_min': "… those not of Nova's own code",
            'worker_cpu_percent': '… CPU of the worker, % of a core',
            'client_cpu_percent': '… CPU of its whole family, % of a core',
            'server_cpu_percent': '… CPU of all servers, % of a core',
        },
    ),
    _one('rss_worker_mib', '… memory of the worker, MiB'),
    _one('rss_client_mib', '… memory of its whole family, MiB'),
    _one('pss_client_mib', '… the same, shared memory counted once, MiB'),
    _one('unscraped_client_cpu_percent', 'idle with a port, not scraped: %'),
    _one('scraped_more_cpu_percent', '… more if scraped every 15 s: %'),
    _one('scrape_client_cpu_ms', '… CPU of one scrape, ms'),
    _one('scraped_kib', '… KiB a scrape'),
    _one('restart_serves_s', 'restart, nothing changed: serves after, s'),
    _one('restart_unserved_s', '… not served since the stop, s'),
    _one('replaced_unserved_s', '… not served if it is replaced, s'),
    _one('restart_s', '… all verified after, s'),
    *_window('restart', _COUNTED),
    _one('killed_serves_s', 'start after kill -9: serves after, s'),
    _one('killed_unserved_s', '… not served since the kill, s'),
    _one(
        'adoption_serves_s',
        "start without what was kept: serves after the worker's start, s",
    ),
    _one('adoption_verified_s', '… all verified after, s'),
    _one('adoption_reads', '… reads of single providers'),
]


def _changes(mode: str, how: str) -> list[Row]:
    rows = [
        _spread(f'{mode}_{kind}', f'{what}, {how}: s', 'p50', 'p95', 'max')
        for kind, what in _CHANGES.items()
    ]
    return [*rows, _one(f'{mode}_look_gap_s', '… known to within, s')]


_BURST = [
    _one('burst_changes', '… other changes meanwhile'),
    _one('burst_audits', '… reads of all nodes meanwhile'),
]


def _builds(part: str, how: str) -> list[Row]:
    points = ('p50', 'p99', 'max')
    return [
        _one(f'{part}_s', f'{how}: seconds until all are ACTIVE'),
        _one(f'{part}_count', '… servers'),
        _one(f'{part}_failed_count', '… that failed'),
        _one(f'{part}_retried_count', '… builds sent to another node'),
        _one(f'{part}_built_count', '… builds that came to the driver'),
        _spread(
            f'{part}_own_ms',
            '… cast → spawn without requests to other services, ms',
            *points,
        ),
        _spread(
            f'{part}_claim_all_ms', '… cast → spawn with them, ms', *points
        ),
        _spread(
            f'{part}_claim_queue_ms', '… cast → build begins, ms', *points
        ),
    ]


def _found(part: str) -> list[Row]:
    return [
        _one(f'{part}_audit_found', '… found by placement audit'),
        _one(f'{part}_heal_found', '… found by heal_allocations --dry-run'),
        _one(f'{part}_strays', '… allocations that no server has'),
        _one(f'{part}_bare', '… ACTIVE servers without an allocation'),
    ]


_CLEANING = [
    _one('clean_nodes', 'cleaning: nodes that were seen in it'),
    _one('clean_wrong_builds', '… builds sent to a node not clean yet'),
    _one('clean_early', '… nodes offered before they were clean'),
    _spread(
        'clean_offered',
        '… Ironic says available → Placement offers it, s',
        'p50',
        'p95',
        'max',
    ),
    _one('clean_look_gap_s', '… known to within, s'),
]

_DEPLOYS = [
    _one('deploy_s', 'slow deploys: seconds until all servers are ACTIVE'),
    _one('deploy_count', '… servers'),
    _one('deploy_failed_count', '… that failed'),
    _one('deploy_retried_count', '… builds sent to another node'),
    _one('deploy_at_once', '… deploys in Ironic at one moment, at most'),
    *(
        _spread(f'deploy_{name}_s', title, 'p50', 'p95', 'max')
        for name, title in (
            ('waited', '… cast → build begins, s'),
            ('own', '… what Ironic itself took, s'),
            ('active', '… cast → ACTIVE, s'),
            ('over', '… less 1.5 times what Ironic itself took, s'),
        )
    ),
    _one('deploy_timed_count', '… servers of which these are known'),
    _one('deploy_ironic_requests', '… requests to Ironic a deploy'),
    _one('deploy_worker_cpu_s', _COUNTED['worker_cpu_s']),
    _one('deploy_client_cpu_s', _COUNTED['client_cpu_s']),
    _one('deploy_server_cpu_s', _COUNTED['server_cpu_s']),
]

_STOLEN = [
    _one(
        f'{part}_stolen_percent',
        f'{part}: of the processors, other machines had meanwhile, %',
    )
    for part in PARTS
]

ROWS: Sequence[Row] = (
    *_REPORTS,
    *_builds('adoption_boot', _BUILDS['adoption_boot']),
    *(row for mode in _MODES.items() for row in _changes(*mode)),
    *_BURST,
    *_builds('boot', _BUILDS['boot']),
    _one('boot_audits', '… reads of all nodes meanwhile'),
    *_found('boot'),
    _one('boot_delete_s', '… seconds until all are deleted again'),
    *_builds('claims', _BUILDS['claims']),
    _one('claims_audits', '… reads of all nodes meanwhile'),
    *_CLEANING,
    *_builds('clean_boot', _BUILDS['clean_boot']),
    *_found('clean'),
    *_DEPLOYS,
    *_STOLEN,
)
NAMES = frozenset(name for row in ROWS for name in row.names)
