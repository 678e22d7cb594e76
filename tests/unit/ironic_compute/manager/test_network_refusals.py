# SPDX-License-Identifier: Apache-2.0
"""Refusals of Neutron: which errors have a sentence about rights."""

import types

import pytest
from neutronclient.common import exceptions as neutron_exceptions
from nova import exception as nova_exception

from ironic_compute.manager.network_refusals import NamesNetworkRefusals


class Nova:
    """Nova's part, which fails with an error."""

    def __init__(self, error):
        self.error = error

    def _allocate_network_async(self, context, instance, *args):
        if self.error is not None:
            raise self.error
        return args


class Manager(NamesNetworkRefusals, Nova):
    """Both parts."""


SERVER = types.SimpleNamespace(uuid='i1')


@pytest.mark.parametrize(
    'error',
    [
        neutron_exceptions.NotFound('no network'),
        neutron_exceptions.PortNotFoundClient('no port'),
    ],
)
def test_refusal_is_raised_and_explained(error, caplog):
    """The sentence names the server, the section and the rules."""
    with pytest.raises(type(error)):
        Manager(error)._allocate_network_async(None, SERVER, 'networks')
    for part in ('server i1', str(error), '[neutron]', 'get_network'):
        assert part in caplog.text


@pytest.mark.parametrize(
    'error',
    [
        neutron_exceptions.ServiceUnavailable('away'),
        nova_exception.Forbidden('rule:update_port'),
    ],
)
def test_other_errors_are_explained_elsewhere(error, caplog):
    """By Nova, and by the session that was refused."""
    with pytest.raises(type(error)):
        Manager(error)._allocate_network_async(None, SERVER, 'networks')
    assert not caplog.text


def test_ports_are_returned(caplog):
    """As Nova has them."""
    found = Manager(None)._allocate_network_async(None, SERVER, 'networks')
    assert found == ('networks',)
    assert not caplog.text
