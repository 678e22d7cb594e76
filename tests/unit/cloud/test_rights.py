# SPDX-License-Identifier: Apache-2.0
"""The policy files that leave the daemons' user the manual's rights only."""

import pytest
from onemachine import config, rights
from onemachine.chaos import rights as losses
from onemachine.chaos import rights_requests
from onemachine.dials import Dials
from oslo_config import cfg
from oslo_policy import policy

PAGE = """\
.. list-table:: Glue: rules that the daemons need
   :header-rows: 1

   * - Rule
     - Needed for
   * - ``stick``
     - this
   * - ``stick:both``,
       ``tear``
     - that ``other``

Text with ``words``.
"""
DEFAULTS = {'stick': 'role:service', 'tear': 'role:admin', 'burn': ''}


def test_rules_are_the_first_cells_of_the_table_with_the_caption():
    """Other cells and other text have names of something else."""
    assert rights.listed(PAGE, 'Glue') == {'stick', 'stick:both', 'tear'}
    assert rights.listed(PAGE, 'Paper') == frozenset()


@pytest.mark.parametrize(
    ('rule', 'user', 'roles', 'may'),
    [
        ('stick', 'me', ['service'], True),
        ('stick', 'other', ['service'], True),
        ('stick', 'other', ['reader'], False),
        ('tear', 'me', ['service'], True),
        ('tear', 'other', ['service'], False),
        ('tear', 'other', ['admin'], True),
        ('burn', 'me', ['service'], False),
        ('burn', 'other', ['reader'], True),
    ],
)
def test_only_one_user_is_restricted(rule, user, roles, may):
    """It has the listed rights, by its role or in addition, and no others."""
    found = rights.policies(DEFAULTS, {'stick', 'tear'}, {'tear'}, 'me')
    enforcer = policy.Enforcer(cfg.ConfigOpts(), use_conf=False)
    enforcer.set_rules(policy.Rules.from_dict(found))
    credentials = {'user_id': user, 'roles': roles}
    assert enforcer.enforce(rule, {}, credentials) is may


def test_daemons_get_a_user_of_their_own_if_told_to(layout):
    """By default they have the user of Nova, an administrator."""
    nova = config.nova(layout, 'c1')
    assert rights.restrict(layout, nova)['ironic']['username'] == 'nova'
    Dials(layout).turn('rights', 'least')
    found = rights.restrict(layout, nova)
    for section in ('ironic', 'placement', 'neutron', 'service_user'):
        assert found[section]['username'] == 'ironic-compute'
    assert nova['ironic']['username'] == 'nova'


def test_each_request_of_the_scenario_is_about_a_right_of_the_manual():
    """And each is known."""
    every = {
        rule for name in losses.SERVICES for rule in rights.of_manual(name)
    }
    assert set(rights_requests.REQUESTS) <= every
    assert every >= {'get_port', 'placement:traits:list'}
    for asked in rights_requests.REQUESTS.values():
        assert hasattr(rights_requests.Requests, f'_{asked}')
