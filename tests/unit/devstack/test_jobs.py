# SPDX-License-Identifier: Apache-2.0
"""The jobs: their form, what they name, and what a machine makes of them."""

import configparser
import os
import re
import shutil
import subprocess

import jsonschema
import pytest
import yaml

from tests.unit.devstack import world as worlds
from tests.unit.devstack import zuul

ROOT = worlds.ROOT
MULTINODE = 'ironic-compute-devstack-multinode'
NEEDS_REFERENCE = pytest.mark.skipif(
    not worlds.HAS_REFERENCE, reason=worlds.WHY_SKIPPED
)

# What others define: the environments of tox that jobs and templates run, and
# the repositories that have a role.
FOREIGN_JOBS = {
    'openstack-tox': None,
    'openstack-tox-functional-py312': 'functional-py312',
}
TEMPLATES = {
    'check-requirements': (),
    'openstack-python3-jobs': ('pep8', 'py311', 'py312', 'py313', 'py314'),
    'publish-openstack-docs-pti': ('docs',),
    'release-notes-jobs-python3': ('releasenotes',),
}
ROLES = {
    'orchestrate-devstack': 'opendev.org/openstack/devstack',
    'setup-tempest-run-dir': 'opendev.org/openstack/tempest',
    'setup-tempest-data-dir': 'opendev.org/openstack/tempest',
    'acl-devstack-files': 'opendev.org/openstack/tempest',
    'run-tempest': 'opendev.org/openstack/tempest',
}
# DevStack's own job sets these on a subnode.
SUBNODE_LOCALRC = {
    'HOST_IP': '192.0.2.2',
    'SERVICE_HOST': '192.0.2.1',
    'RABBIT_HOST': '192.0.2.1',
    'DATABASE_HOST': '192.0.2.1',
    'DATABASE_TYPE': 'mysql',
}


def project():
    """Return our project stanza."""
    items = zuul.load_files(ROOT / 'zuul.d')['project.yaml']
    return items[0]['project']


def pipeline_jobs():
    """Yield the name of each job in a pipeline."""
    for pipeline in ('check', 'gate'):
        for job in project()[pipeline]['jobs']:
            yield next(iter(job)) if isinstance(job, dict) else job


def playbooks(job):
    """Return the playbooks that a job names."""
    named = [job.get(kind, []) for kind in ('pre-run', 'run', 'post-run')]
    return [p for each in named for p in zuul.as_list(each)]


@pytest.mark.parametrize('name', ['jobs.yaml', 'project.yaml'])
def test_definitions_have_the_form_of_zuul(name):
    """Zuul knows each attribute, and its kind of value."""
    contents = zuul.load_files(ROOT / 'zuul.d')[name]
    jsonschema.validate(contents, zuul.FILE)


@NEEDS_REFERENCE
def test_form_of_zuul_accepts_the_jobs_of_ironic():
    """The rules are not stricter than Zuul's for these."""
    jobs = [{'job': job} for job in zuul.ironic_jobs().values()]
    assert jobs
    jsonschema.validate(jobs, zuul.FILE)


@pytest.mark.parametrize(
    'job',
    [
        {'parent': 'base'},
        {'name': 'a', 'var': {}},
        {'name': 'a', 'voting': 'no'},
        {'name': 'a', 'group-vars': {'subnode': 3}},
    ],
    ids=['no name', 'unknown attribute', 'kind', 'depth'],
)
def test_form_of_zuul_refuses_mistakes(job):
    """A mistake in a definition is found before Zuul finds it."""
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate([{'job': job}], zuul.FILE)


@NEEDS_REFERENCE
def test_parents_exist():
    """Each parent is a job of ours, of Ironic or a known other one."""
    known = {*zuul.own_jobs(), *zuul.ironic_jobs(), *FOREIGN_JOBS}
    for job in zuul.own_jobs().values():
        assert job['parent'] in known, job['name']


@NEEDS_REFERENCE
def test_nodesets_exist():
    """Each nodeset that a job names is one of Ironic's."""
    nodesets = zuul.ironic_nodesets()
    jobs = zuul.own_jobs().values()
    assert {job['nodeset'] for job in jobs if 'nodeset' in job} <= nodesets


def test_pipelines_name_existing_jobs():
    """Each job of a pipeline is ours or a known other one."""
    assert set(pipeline_jobs()) <= {*zuul.own_jobs(), *FOREIGN_JOBS}
    assert set(project()['templates']) <= set(TEMPLATES)


def test_each_job_runs():
    """No job is defined that no pipeline runs."""
    assert set(zuul.own_jobs()) <= set(pipeline_jobs())


def test_playbooks_and_their_roles_exist():
    """A job lists the repositories of the roles that its playbooks use."""
    named = 0
    for job in zuul.own_jobs().values():
        repositories = {role['zuul'] for role in job.get('roles', [])}
        for playbook in playbooks(job):
            named += 1
            for play in yaml.safe_load((ROOT / playbook).read_text()):
                for role in play.get('roles', []):
                    assert ROLES[role] in repositories, role
    assert named


def test_playbooks_are_used():
    """No playbook is there that no job names."""
    used = {p for job in zuul.own_jobs().values() for p in playbooks(job)}
    there = {f'playbooks/{p.name}' for p in (ROOT / 'playbooks').iterdir()}
    assert there == used


def devstack_jobs():
    """Our jobs that run DevStack; the others run an environment of tox."""
    jobs = zuul.own_jobs().items()
    return [name for name, job in jobs if job['parent'] != 'openstack-tox']


@NEEDS_REFERENCE
@pytest.mark.parametrize('name', devstack_jobs())
def test_devstack_jobs_have_both_plugins(name):
    """Our repository is checked out, and the plugin comes after Ironic's."""
    plugins = zuul.inherited(name, 'vars')['devstack_plugins']
    # DevStack's role sorts them by name.
    assert [p for p in sorted(plugins) if 'ironic' in p] == [
        'ironic',
        'ironic-compute',
    ]
    job = zuul.own_jobs()[name]
    parent = zuul.own_jobs().get(job['parent'], job)
    assert 'openstack/ironic-compute' in parent['required-projects']


@NEEDS_REFERENCE
def test_multinode_job_has_the_topology_of_ironic():
    """Controller and subnodes know their role and the networks."""
    controller = zuul.inherited(MULTINODE, 'vars')['devstack_localrc']
    subnode = zuul.inherited(MULTINODE, 'group-vars')['subnode']
    for localrc, role in (
        (controller, 'primary'),
        (subnode['devstack_localrc'], 'subnode'),
    ):
        assert localrc['HOST_TOPOLOGY'] == 'multinode'
        assert localrc['HOST_TOPOLOGY_ROLE'] == role
        assert localrc['VIRT_DRIVER'] == 'ironic'
        assert localrc['OVS_PHYSICAL_BRIDGE'] == 'brbm'
        assert localrc['IRONIC_PROVISION_NETWORK_NAME'] == 'ironic-provision'
    assert 'HOST_TOPOLOGY_SUBNODES' in controller


def test_multinode_job_maps_all_hosts_on_the_controller():
    """Hosts are mapped when all machines have agents, before the tests."""
    (playbook,) = zuul.as_list(zuul.own_jobs()[MULTINODE]['run'])
    plays = yaml.safe_load((ROOT / playbook).read_text())
    assert [play['hosts'] for play in plays] == [
        'all',
        'controller',
        'tempest',
    ]
    (task,) = plays[1]['tasks']
    assert 'discover_hosts --by-service' in task['command']
    assert plays[2]['roles'][-1] == 'run-tempest'


@pytest.fixture(scope='module')
def subnode(tmp_path_factory):
    """A subnode of the multinode job, after stack.sh."""
    if not worlds.HAS_REFERENCE:
        pytest.skip(worlds.WHY_SKIPPED)
    variables = zuul.inherited(MULTINODE, 'group-vars')['subnode']
    world = worlds.World(tmp_path_factory.mktemp('subnode'), 'compute0')
    localrc = {
        name: value
        for name, value in variables['devstack_localrc'].items()
        if '{{' not in str(value)
    }
    services = variables['devstack_services'].items()
    names = [name for name, is_on in services if is_on is True]
    world.configure(
        {
            **localrc,
            **SUBNODE_LOCALRC,
            'ENABLED_SERVICES': ','.join(n for n in names if n != 'atop'),
        },
        lines=[f'disable_service {n}' for n, is_on in services if not is_on],
    )
    # Ironic's API has the nodes of all machines, and the controller's agent
    # holds them until the subnodes' hosts are mapped.
    (world.path / 'services/ctl').write_text('mapped')
    world.run_well('stack')
    return world


def test_subnode_runs_an_agent(subnode):
    """The agent has the subnode's host, and the bus of the controller."""
    assert 'ironic-compute-1' in subnode.running
    conf = subnode.starts('ironic-compute-1')[-1]
    assert conf['DEFAULT']['host'] == 'compute0'
    assert '192.0.2.1:5672/nova_cell1' in conf['DEFAULT']['transport_url']
    assert conf['ironic']['auth_type'] == 'password'
    assert conf['placement']['username'] == 'nova'


def test_subnode_meets_the_controller_in_etcd(subnode):
    """All machines have the same coordination backend."""
    conf = subnode.starts('ironic-compute-1')[-1]
    backend = conf['coordination']['backend_url']
    assert backend == 'etcd3+http://192.0.2.1:2379'


def test_controller_meets_the_subnodes_in_etcd(tmp_path):
    """The controller runs etcd, and its agents use it."""
    if not worlds.HAS_REFERENCE:
        pytest.skip(worlds.WHY_SKIPPED)
    variables = zuul.inherited(MULTINODE, 'vars')
    assert variables['devstack_services']['etcd3'] is True
    world = worlds.World(tmp_path)
    topology = variables['devstack_localrc']['HOST_TOPOLOGY']
    world.configure({'HOST_TOPOLOGY': topology})
    name = 'IRONIC_COMPUTE_BACKEND_URL'
    result = world.run_well('call', 'declare', '-p', name)
    value = result.output.splitlines()[-1]
    assert value == f'declare -- {name}="etcd3+http://192.0.2.1:2379"'


def test_subnode_leaves_mapping_to_the_controller(subnode):
    """A subnode has no API database, so nova-manage could do nothing."""
    assert not any('nova-manage' in line for line in subnode.log)
    awaited = subnode.first('--host compute0 --service nova-compute')
    assert subnode.first('start devstack@ironic-compute-1') < awaited


def _tox():
    """Return the command of tox, or None."""
    own = ROOT / '.venv/bin/tox'
    return str(own) if own.exists() else shutil.which('tox')


def _tox_environments():
    """Return the environments of tox that Zuul's jobs run."""
    own = [job.get('vars', {}) for job in zuul.own_jobs().values()]
    named = {v['tox_envlist'] for v in own if 'tox_envlist' in v}
    named |= {FOREIGN_JOBS.get(job) for job in pipeline_jobs()} - {None}
    return sorted(
        named.union(*(TEMPLATES[each] for each in project()['templates']))
    )


@pytest.fixture(scope='module')
def tox_config():
    """What tox makes of its file for the environments that jobs run."""
    if _tox() is None:
        pytest.skip('there is no tox in .venv or in PATH; `make` installs it')
    names = ','.join(_tox_environments())
    keys = ('base_python', 'set_env', 'commands')
    done = subprocess.run(
        [_tox(), 'config', '-e', names, '-k', *keys],
        cwd=ROOT,
        env={**os.environ, 'TOX_CONSTRAINTS_FILE': '/upper-constraints.txt'},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    parser = configparser.RawConfigParser(delimiters='=')
    parser.optionxform = str
    parser.read_string(done.stdout)
    return {
        name.removeprefix('testenv:'): dict(parser[name])
        for name in parser.sections()
    }


def test_tox_accepts_the_environments_of_jobs(tox_config):
    """The version in a name is the Python that the environment has."""
    assert set(_tox_environments()) == set(tox_config)
    unit = tox_config['py312']
    assert unit['base_python'] == 'py312'
    assert unit['commands'] == "python -m pytest -m 'not slow'"
    functional = tox_config['functional-py312']
    assert functional['base_python'] == 'py312'
    assert functional['commands'] == 'python -m tests.runner functional'


def test_tox_takes_upper_constraints(tox_config):
    """Those of OpenStack count, but not for Nova 33 and for linters."""
    used = {
        name: re.search('PIP_CONSTRAINT=.*/(.*)', env['set_env'])[1]
        for name, env in tox_config.items()
    }
    assert used.pop('py3-nova33') == 'constraints-nova33.txt'
    assert used.pop('pep8') == 'constraints-nova34.txt'
    assert set(used.values()) == {'upper-constraints.txt'}
