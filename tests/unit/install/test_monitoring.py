# SPDX-License-Identifier: Apache-2.0
"""The alert rules, the dashboard and the manual fit the daemons' metrics."""

import json
import pathlib
import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from ironic_compute.agent_port.agent_metrics import BackendMetrics, describe
from ironic_compute.agent_port.problems import Alert
from ironic_compute.metrics import Metrics
from tests.fakes.clock import ManualClock
from tests.unit.ironic_compute.agent_port import pools, statuses

ROOT = pathlib.Path(__file__).parents[3]
RULES = ROOT / 'etc/prometheus/ironic-compute.rules.yaml'
DASHBOARD = ROOT / 'etc/grafana/ironic-compute.json'
MANUAL = ROOT / 'doc/source/admin/alerts.rst'
CASES = pathlib.Path(__file__).parent / 'prometheus/alerts.test.yaml'
PARTS = ('*Meaning*: ', '*Look at*: ', '*Do*: ')
PROMTOOL = shutil.which('promtool')
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="Debian's package prometheus is not installed"
)


def _rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())['groups']
    return [rule for group in groups for rule in group['rules']]


def _dashboard_queries() -> Iterator[str]:
    for panel in json.loads(DASHBOARD.read_text())['panels']:
        for target in panel.get('targets', ()):
            yield target['expr']


def _series() -> dict[str, set[str]]:
    """Return each series of agent and worker, with its labels."""
    clock = ManualClock()
    backend, worker = BackendMetrics(clock), Metrics('c1', clock)
    with backend.time('heartbeat'):
        pass
    worker.count_request('PUT', 'traits', '200', 0.1)
    with worker.time_ironic_request('read'):
        pass
    text = describe(statuses.STATUS, {statuses.C1: True}, statuses.NOW_S)
    text += backend.text() + worker.text().decode()
    text += ''.join(pools.troubled().texts.values())
    text += 'ironic_compute_path_failing_seconds{host="c1",path="x"} 0\n'
    found: dict[str, set[str]] = {}
    for name, labels in re.findall(r'^(\w+)(?:\{(.*)\})? ', text, re.M):
        found.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
    return found


SERIES = _series()
QUERIES = [*(rule['expr'] for rule in _rules()), *_dashboard_queries()]


@pytest.mark.parametrize('query', QUERIES)
def test_each_query_uses_series_and_labels_that_exist(query: str) -> None:
    """A name that was changed would leave an alert quiet for ever."""
    names = set(re.findall(r'\bironic_compute_\w+', query))
    assert names <= SERIES.keys()
    if not names:
        assert 'up{' in query
        return
    labels = set().union(*(SERIES[name] for name in names), {'instance'})
    grouped = ','.join(re.findall(r'\bby \(([^)]*)\)', query))
    matched = re.findall(r'(\w+)(?:!~|=~|!=|=)"', query)
    used = {*re.findall(r'\w+', grouped), *matched}
    assert used <= labels


def test_each_alert_has_a_section_of_the_manual() -> None:
    """With meaning, what to look at and what to do; and no other section."""
    text = MANUAL.read_text()
    sections = re.split(r'^(IronicCompute\w+)\n-+\n', text, flags=re.M)[1:]
    found = dict(zip(sections[::2], sections[1::2], strict=True))
    assert list(found) == [rule['alert'] for rule in _rules()]
    for name, section in found.items():
        marks = re.findall(r'^\*[A-Z][a-z ]+\*: ', section, re.M)
        assert tuple(marks) == PARTS, name


def test_the_status_page_names_alerts_that_exist() -> None:
    """Who reads a name there finds it in the manual."""
    assert {*Alert} <= {rule['alert'] for rule in _rules()}


def test_each_alert_has_a_severity_and_a_summary() -> None:
    """Alertmanager sorts by the one and sends the other."""
    for rule in _rules():
        assert rule['labels']['severity'] in ('critical', 'warning', 'info')
        assert rule['annotations']['summary']


def test_each_alert_fires_in_a_case() -> None:
    """The cases with made-up series leave none out."""
    text = CASES.read_text()
    for rule in _rules():
        short = rule['alert'].removeprefix('IronicCompute')
        assert short in text


@pytest.mark.parametrize('name', ['HostNotInRing', 'RingDisagreement'])
def test_an_alert_about_the_ring_is_of_daemons_that_serve(name: str) -> None:
    """No worker of another daemon reads the Services that make the ring."""
    (rule,) = (r for r in _rules() if r['alert'] == f'IronicCompute{name}')
    guard = 'and ironic_compute_agent_hosts_served_here > 0'
    assert guard in rule['expr']


@needs_promtool
def test_promtool_accepts_the_rules_and_their_cases() -> None:
    """Made-up series: quiet while all is well, and loud after each fault."""
    _promtool('check', 'rules', str(RULES))
    _promtool('test', 'rules', str(CASES))


@needs_promtool
def test_promtool_accepts_the_queries_of_the_dashboard(
    tmp_path: pathlib.Path,
) -> None:
    """Grafana puts values in the place of its variables."""
    rules = [
        {
            'record': f'query:{number}',
            'expr': query.replace('$__rate_interval', '5m'),
        }
        for number, query in enumerate(_dashboard_queries())
    ]
    path = tmp_path / 'rules.yaml'
    path.write_text(
        yaml.safe_dump({'groups': [{'name': 'queries', 'rules': rules}]})
    )
    assert len(rules) > 20
    _promtool('check', 'rules', str(path))


def _promtool(*arguments: str) -> None:
    done = subprocess.run(
        [str(PROMTOOL), *arguments], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_panels_of_the_dashboard_do_not_overlap() -> None:
    """Each has its own number and place."""
    panels = json.loads(DASHBOARD.read_text())['panels']
    assert len({panel['id'] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel['gridPos']
        places = {
            (x, y)
            for x in range(at['x'], at['x'] + at['w'])
            for y in range(at['y'], at['y'] + at['h'])
        }
        assert not places & taken
        assert at['x'] + at['w'] <= 24
        taken |= places
