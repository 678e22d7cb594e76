# SPDX-License-Identifier: Apache-2.0
"""The configuration files that the cloud writes."""

import configparser

import pytest
from onemachine import computes, config
from onemachine.dials import Dials
from onemachine.layout import REPOSITORY
from onemachine.progress import CloudError

from tests.unit.install.files import parse_ini, reference, render

SAMPLE = """\
[DEFAULT]

[one]
# What it is for. (string value)
#colour = red

# Another. (integer value)
#size = 1

[two]
#colour = blue
"""


def parsed(text):
    """Return an ini file as a parser reads it."""
    parser = configparser.RawConfigParser(strict=True)
    parser.read_string(text)
    return parser


def test_sample_is_filled_where_the_option_stands():
    """An option is set below its default, in its own section only."""
    filled = config.fill_sample(SAMPLE, {'two': {'colour': 'green'}})
    assert filled == SAMPLE + 'colour = green\n'
    assert not parsed(filled).has_option('one', 'colour')


def test_sample_without_the_option_is_refused():
    """An option that the sample lacks raises an error."""
    with pytest.raises(CloudError, match=r'\[one\] weight'):
        config.fill_sample(SAMPLE, {'one': {'weight': 2}})


def test_shipped_sample_has_the_options_of_agents():
    """Backend and state folder can be set in the shipped sample."""
    values = {
        'coordination': {'backend_url': 'file:///x'},
        'ironic_compute': {'state_path': '/y'},
    }
    parser = parsed(config.fill_sample(computes._SAMPLE.read_text(), values))
    assert parser['coordination']['backend_url'] == 'file:///x'
    assert parser['ironic_compute']['state_path'] == '/y'


def test_write_returns_whether_a_file_has_changed(tmp_path):
    """Writing the same content again returns False."""
    path = tmp_path / 'folder' / 'file.conf'
    assert config.write(path, {'a': {'b': 1}})
    assert not config.write(path, {'a': {'b': 1}})
    assert config.write(path, {'a': {'b': 2}})
    assert parsed(path.read_text())['a']['b'] == '2'


@pytest.mark.parametrize('service', sorted(config._RENDER))
def test_each_service_writes_its_log_to_its_output(layout, service):
    """Services log to stderr and not to files below /var."""
    parser = parsed(config.render(config._RENDER[service](layout)))
    if service != 'nova':
        assert parser['DEFAULT']['use_stderr'] == 'true'
    assert '/var/' not in config.render(config._RENDER[service](layout))


def test_compute_host_has_no_database(layout):
    """A compute host has no database connection."""
    host = config.nova(layout, 'c1')
    assert host['DEFAULT']['host'] == 'c1'
    assert not {'database', 'api_database'} & set(host)
    assert {'database', 'api_database'} <= set(config.nova(layout))


def test_compute_hosts_use_system_scope(layout):
    """Compute hosts use system scope, with which Ironic lists all nodes."""
    ironic = config.nova(layout, 'c1')['ironic']
    assert ironic['system_scope'] == 'all'
    assert 'project_name' not in ironic


def test_dials_reach_ironic(layout):
    """A changed setting is in the next configuration of Ironic."""
    dials = Dials(layout)
    assert dials.turn('deploy-delay', '7')
    assert not dials.turn('deploy-delay', '7')
    dials.turn('cleaning', 'on')
    dials.turn('notifications', 'off')
    ironic = config.ironic(layout)
    assert ironic['fake']['deploy_delay'] == '7'
    assert ironic['conductor']['automated_clean'] == 'true'
    assert 'notification_level' not in ironic['DEFAULT']
    assert ironic['oslo_messaging_notifications']['driver'] == 'noop'


def test_placement_has_its_own_retries_by_default(layout):
    """Builds must cope with Placement's default; a setting changes it."""
    option = 'allocation_conflict_retry_count'
    assert option not in config.placement(layout)['placement']
    Dials(layout).turn('placement-retries', 'off')
    assert config.placement(layout)['placement'][option] == 1


def test_nodes_are_ordered_by_default_without_spread(layout):
    """Without the setting, no option changes which node is taken first."""
    shuffle = 'shuffle_best_same_weighed_hosts'
    assert config.nova(layout)['filter_scheduler'][shuffle] == 'true'
    Dials(layout).turn('spread', 'off')
    assert config.placement(layout)['placement'] == {}
    nova = config.nova(layout)
    assert shuffle not in nova['filter_scheduler']
    assert 'max_placement_results' not in nova['scheduler']


@pytest.mark.parametrize(
    ('name', 'value'), [('deploy-delay', 'long'), ('cleaning', 'yes')]
)
def test_dials_refuse_unknown_values(layout, name, value):
    """An unknown value of a setting is refused."""
    with pytest.raises(CloudError, match=name):
        Dials(layout).turn(name, value)


def test_agent_has_the_command_line_of_the_unit(layout):
    """The agent runs as the unit states, with the folders of this cloud."""
    unit = REPOSITORY / 'etc' / 'systemd' / 'ironic-compute.service'
    folder = layout.folder('agents', 'c1')
    program, *arguments = computes.unit_command(unit, layout, folder)
    assert program == layout.bin('ironic-compute')
    assert arguments == [
        '--config-file',
        str(folder / 'nova.conf'),
        '--config-file',
        str(folder / 'ironic-compute.conf'),
    ]


@pytest.mark.parametrize('service', [config.nova, config.ironic])
def test_queues_have_a_type(layout, service):
    """The type of the queues reaches each service; others are refused."""
    dials = Dials(layout)
    option = 'rabbit_quorum_queue'
    assert service(layout)['oslo_messaging_rabbit'][option] == 'false'
    assert dials.turn('queues', 'quorum')
    assert not dials.turn('queues', 'quorum')
    assert service(layout)['oslo_messaging_rabbit'][option] == 'true'
    with pytest.raises(CloudError, match='classic or quorum or kolla'):
        dials.turn('queues', 'on')


@pytest.mark.parametrize('host', ['c1', None])
def test_queues_are_those_of_kolla(layout, host):
    """Each queue is durable; a compute host has a name of its own."""
    Dials(layout).turn('queues', 'kolla')
    options = config.nova(layout, host)['oslo_messaging_rabbit']
    assert options.get('hostname') == host
    template = reference(
        *('kolla-ansible', 'ansible', 'roles', 'nova-cell', 'templates'),
        'nova.conf.j2',
    )
    values = {'service_name': 'nova-conductor'}
    values['om_enable_rabbitmq_stream_fanout'] = 'true'
    values['om_rabbitmq_qos_prefetch_count'] = '50'
    rendered = parse_ini(render(template.read_text(), **values))
    theirs = rendered['oslo_messaging_rabbit']
    del theirs['heartbeat_in_pthread']
    ours = {k: str(v) for k, v in options.items() if k != 'hostname'}
    assert ours == theirs
