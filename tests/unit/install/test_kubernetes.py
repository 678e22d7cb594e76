# SPDX-License-Identifier: Apache-2.0
"""The manifests for Kubernetes and OpenStack-Helm."""

import importlib
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import types
from typing import Any

import pytest
import yaml
from oslo_config import cfg

import hashring.opts
from ironic_compute import config
from tests.unit.install import options
from tests.unit.install.files import CONTRIB, containerfile, read_yaml

FOLDER = CONTRIB / 'kubernetes'
_PAGES = 'tests.unit.ironic_compute.agent_port.test_application'
_KUBECTL = shutil.which('kubectl')

Object = dict[str, Any]


def _objects() -> dict[str, Object]:
    text = (FOLDER / 'ironic-compute.yaml').read_text()
    return {each['kind']: each for each in yaml.safe_load_all(text)}


def _pod(stateful_set: Object | None = None) -> Object:
    found = stateful_set or _objects()['StatefulSet']
    pod: Object = found['spec']['template']['spec']
    return pod


def _container(pod: Object | None = None) -> Object:
    (found,) = (pod or _pod())['containers']
    container: Object = found
    return container


def _render(folder: str) -> dict[str, Object]:
    if _KUBECTL is None:
        pytest.skip('kubectl is not installed')
    done = subprocess.run(
        [_KUBECTL, 'kustomize', str(CONTRIB / folder)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return {each['kind']: each for each in yaml.safe_load_all(done.stdout)}


def test_selectors_find_the_pods() -> None:
    """Service, budget and StatefulSet select what the template labels."""
    objects = _objects()
    spec = objects['StatefulSet']['spec']
    labels = spec['template']['metadata']['labels']
    assert spec['selector']['matchLabels'] == labels
    assert objects['Service']['spec']['selector'] == labels
    budget = objects['PodDisruptionBudget']['spec']
    assert budget['selector']['matchLabels'] == labels
    assert spec['serviceName'] == objects['Service']['metadata']['name']


def test_each_mount_has_its_volume() -> None:
    """A volume that is mounted is declared, and the state is kept."""
    claims = _objects()['StatefulSet']['spec']['volumeClaimTemplates']
    kept = {claim['metadata']['name'] for claim in claims}
    declared = kept | {volume['name'] for volume in _pod()['volumes']}
    mounts = {m['mountPath']: m for m in _container()['volumeMounts']}
    assert {mount['name'] for mount in mounts.values()} == declared
    config.register_opts(conf := cfg.ConfigOpts())
    conf([], default_config_files=[])
    assert mounts[conf.ironic_compute.state_path]['name'] in kept
    assert str(pathlib.Path(config.OWN_CONFIG).parent) in mounts


def test_pod_names_the_host_and_the_address_of_the_port() -> None:
    """A variable sets an option, and wins over the file."""
    known, found = options.of_the_daemon(), set()
    for variable in _container()['env']:
        path = variable['valueFrom']['fieldRef']['fieldPath']
        prefix, _, name = variable['name'].lower().partition('__')
        group = prefix.removeprefix('os_').replace('default', 'DEFAULT')
        assert name in known[group]
        found.add((group, name, path))
    assert found == {
        ('DEFAULT', 'host', 'metadata.name'),
        ('ironic_compute', 'agent_address', 'status.podIP'),
    }


def test_variable_wins_over_the_file(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """oslo.config reads the environment before nova.conf."""
    monkeypatch.setenv('OS_DEFAULT__HOST', 'ironic-compute-0')
    (tmp_path / 'nova.conf').write_text('[DEFAULT]\nhost = c1\n')
    conf = cfg.ConfigOpts()
    conf.register_opt(cfg.StrOpt('host'))
    conf([], default_config_files=[str(tmp_path / 'nova.conf')])
    assert conf.host == 'ironic-compute-0'


def test_pod_has_time_to_stop() -> None:
    """It stops itself before it is killed, and later than it may drain."""
    conf = cfg.ConfigOpts()
    hashring.opts.register_opts(conf)
    path = str(FOLDER / 'ironic-compute.conf')
    conf([], default_config_files=[path], use_env=False)
    hashring.opts.check_options(conf)
    grace_s = _pod()['terminationGracePeriodSeconds']
    assert grace_s >= conf.coordination.drain_timeout_s + 30
    command = _container()['lifecycle']['preStop']['exec']['command']
    words = shlex.split(command[-1])
    assert words[:3] == ['kill', '-USR1', '1']
    assert conf.coordination.drain_timeout_s < float(words[-1]) < grace_s


def test_stop_signal_is_one_of_the_agent() -> None:
    """The agent takes SIGUSR1 as an order to stop for good."""
    module = importlib.import_module('ironic_compute.agent.signals')

    class Agent:
        for_good = False

        def request_stop(self, *, for_good: bool = False) -> None:
            self.for_good = for_good

    names = ('TERM', 'INT', 'HUP', 'URG', 'USR1', 'USR2')
    numbers = [getattr(signal, f'SIG{name}') for name in names]
    before = {number: signal.getsignal(number) for number in numbers}
    agent, woken_fds = Agent(), list[int]()
    workers = types.SimpleNamespace(end_waits_on=woken_fds.append)
    next_one = types.SimpleNamespace(renounce=lambda: None)
    try:
        module.AgentSignals(None, '', workers, next_one).install(agent)
        os.kill(os.getpid(), signal.SIGUSR1)
        assert agent.for_good
        (woken_fd,) = woken_fds
        assert os.read(woken_fd, 2) == bytes([signal.SIGUSR1])
    finally:
        for fd in (*woken_fds, signal.set_wakeup_fd(-1)):
            os.close(fd)
        for number, handler in before.items():
            signal.signal(number, handler)


def test_probes_ask_the_port_of_the_agent() -> None:
    """Only readiness asks for more than a loop that turns."""
    config.register_opts(conf := cfg.ConfigOpts())
    path = str(FOLDER / 'ironic-compute.conf')
    conf([], default_config_files=[path], use_env=False)
    container = _container()
    port = {'name': 'agent', 'containerPort': conf.ironic_compute.agent_port}
    assert container['ports'] == [port]
    pages = {
        'startupProbe': '/healthz',
        'livenessProbe': '/healthz',
        'readinessProbe': '/readyz',
    }
    known = importlib.import_module(_PAGES).PATHS
    for name, page in pages.items():
        assert page in known
        assert container[name]['httpGet'] == {'path': page, 'port': 'agent'}


def test_a_start_may_take_three_minutes() -> None:
    """A daemon that runs is started again after one minute."""
    container, limits_s = _container(), []
    for name in ('startupProbe', 'livenessProbe'):
        probe = container[name]
        limits_s.append(probe['periodSeconds'] * probe['failureThreshold'])
    assert limits_s == [180, 60]


def test_prometheus_finds_pods_that_are_not_ready() -> None:
    """The service has the port of the agent and all pods."""
    spec = _objects()['Service']['spec']
    (port,) = spec['ports']
    assert port['targetPort'] == _container()['ports'][0]['name']
    assert port['port'] == _container()['ports'][0]['containerPort']
    assert spec['publishNotReadyAddresses'] is True


def test_container_has_no_rights() -> None:
    """It is not root, has no capability and writes into volumes only."""
    pod, container = _pod(), _container()
    assert pod['securityContext']['runAsNonRoot'] is True
    uid = pod['securityContext']['runAsUser']
    path = CONTRIB / 'container' / 'Containerfile'
    assert ('ARG', f'UID={uid}') in containerfile(path)
    rights = container['securityContext']
    assert rights['readOnlyRootFilesystem'] is True
    assert rights['allowPrivilegeEscalation'] is False
    assert rights['capabilities'] == {'drop': ['ALL']}


def test_kustomize_fills_in_image_and_configuration() -> None:
    """The image has a registry, and the pods the file of the folder."""
    objects = _render('kubernetes')
    pod = _pod(objects['StatefulSet'])
    image = read_yaml(FOLDER / 'kustomization.yaml')['images'][0]
    expected = f'{image["newName"]}:{image["newTag"]}'
    assert _container(pod)['image'] == expected
    volumes = {volume['name']: volume for volume in pod['volumes']}
    name = volumes['ironic-compute-conf']['configMap']['name']
    assert name == objects['ConfigMap']['metadata']['name']
    text = (FOLDER / 'ironic-compute.conf').read_text()
    assert objects['ConfigMap']['data'] == {'ironic-compute.conf': text}


def test_openstack_helm_pods_read_the_secrets_of_the_chart() -> None:
    """nova.conf is that of the chart; the rest of the pod stays the same."""
    plain = _pod(_render('kubernetes')['StatefulSet'])
    pod = _pod(_render('openstack-helm')['StatefulSet'])
    mounts = {m['mountPath']: m for m in _container(pod)['volumeMounts']}
    before = {m['mountPath'] for m in _container(plain)['volumeMounts']}
    added = {'/etc/nova/logging.conf', '/etc/nova/nova.conf.d'}
    assert mounts.keys() == before | added
    assert mounts['/etc/nova/nova.conf']['subPath'] == 'nova-compute.conf'
    volumes = {volume['name']: volume for volume in pod['volumes']}
    assert volumes['nova-conf']['secret'] == {'secretName': 'nova-etc'}
    assert {m['name'] for m in mounts.values()} - {'state'} == volumes.keys()
    for name in ('livenessProbe', 'readinessProbe', 'lifecycle', 'env'):
        assert _container(pod)[name] == _container(plain)[name]


def test_openstack_helm_runs_no_nova_compute() -> None:
    """The chart makes its secrets for Ironic, and no pod."""
    values = read_yaml(CONTRIB / 'openstack-helm' / 'values.yaml')
    assert values['manifests'] == {'statefulset_compute_ironic': True}
    assert values['pod']['replicas'] == {'compute_ironic': 0}


@pytest.mark.parametrize('folder', ['kubernetes', 'openstack-helm'])
def test_objects_agree_with_the_schema_of_kubernetes(folder: str) -> None:
    """Every field is one of Kubernetes, with a value of its type."""
    validate = pytest.importorskip(
        'kubernetes_validate', reason='kubernetes-validate is not installed'
    )
    for each in _render(folder).values():
        validate.validate(each, validate.latest_version(), strict=True)
