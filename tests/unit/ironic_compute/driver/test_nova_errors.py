# SPDX-License-Identifier: Apache-2.0
"""Translation of our errors into Nova's exceptions."""

import types

import pytest
from nova import exception as nova_exception

from ironic_compute import errors
from ironic_compute.driver import nova_errors

INSTANCE = types.SimpleNamespace(uuid='11111111-aaaa')


@pytest.mark.parametrize(
    ('error', 'wanted'),
    [
        (errors.NodeAssociated, nova_exception.InstanceDeployFailure),
        (errors.DeployFailed, nova_exception.InstanceDeployFailure),
        (errors.IronicUnavailable, nova_exception.InstanceDeployFailure),
        (errors.WaitTimeout, nova_exception.InstanceDeployFailure),
        (errors.DeployInvalid, nova_exception.BuildAbortException),
        (errors.NodeNotFound, nova_exception.InstanceNotFound),
        (errors.TeardownFailed, nova_exception.NovaException),
    ],
)
def test_each_error_has_its_exception_of_nova(error, wanted):
    """The class of our error decides the class of Nova's exception."""
    assert type(nova_errors.to_nova(error('it broke'), INSTANCE)) is wanted


def test_text_reaches_the_user():
    """The text of our error becomes the fault that the user reads."""
    exc = nova_errors.to_nova(errors.DeployFailed('Node n did not deploy'))
    assert 'Node n did not deploy' in str(exc)


def test_not_found_names_the_instance():
    """The exception for a server that is not found has its uuid."""
    exc = nova_errors.to_nova(errors.NodeNotFound('no node'), INSTANCE)
    assert INSTANCE.uuid in str(exc)


@pytest.mark.parametrize(
    'failure',
    [
        nova_exception.InstancePowerOffFailure,
        nova_exception.VirtDriverNotReady,
        nova_exception.NovaException,
    ],
)
def test_documented_exception_of_an_operation_has_our_text(failure):
    """The exception class of an operation always shows the text of ours."""
    with (
        pytest.raises(failure, match='it broke') as raised,
        nova_errors.as_nova_errors(INSTANCE, failure),
    ):
        raise errors.IronicUnavailable('it broke')
    assert type(raised.value) is failure


def test_server_without_a_node_is_not_found():
    """A server that Ironic does not have is not found, in any operation."""
    with (
        pytest.raises(nova_exception.InstanceNotFound),
        nova_errors.as_nova_errors(
            INSTANCE, nova_exception.InstanceRebootFailure
        ),
    ):
        raise nova_errors.NoNode('Ironic has no such server')


def test_errors_of_others_pass_unchanged():
    """An exception of Neutron or Nova is raised as it is."""
    with (
        pytest.raises(nova_exception.PortNotFound),
        nova_errors.as_nova_errors(INSTANCE),
    ):
        raise nova_exception.PortNotFound(port_id='p')


@pytest.mark.parametrize(
    ('error', 'wanted'),
    [
        (errors.DeployInvalid, nova_exception.BuildAbortException),
        (errors.DeployFailed, nova_exception.InstanceDeployFailure),
        (errors.NodeNotFound, nova_exception.InstanceDeployFailure),
        (
            nova_errors.Cancelled,
            nova_exception.UnexpectedDeletingTaskStateError,
        ),
    ],
)
def test_error_of_a_build_decides_whether_nova_tries_another_node(
    error, wanted
):
    """Only a bad image, or a deleted server, ends the build at once."""
    with (
        pytest.raises(nova_exception.NovaException) as raised,
        nova_errors.as_nova_build_errors(INSTANCE),
    ):
        raise error('it broke')
    assert type(raised.value) is wanted


_NO_CONNECTION = (
    'Unable to establish connection to http://192.0.2.1:6385/v1/nodes/n?f=u: '
    "HTTPConnectionPool(host='192.0.2.1', port=6385): Max retries exceeded "
    'with url: /v1/nodes/n?f=u (Caused by NewConnectionError("refused"))'
)


@pytest.mark.parametrize(
    ('text', 'shown'),
    [
        (_NO_CONNECTION, 'Unable to establish connection to its URL'),
        (
            'Request to https://ironic.internal/v1 timed out',
            'Request to its URL timed out',
        ),
        ("Node n has no kernel 'file:///k'", "Node n has no kernel 'its URL'"),
    ],
)
@pytest.mark.parametrize(
    'context',
    [
        lambda: nova_errors.as_nova_errors(
            INSTANCE, nova_exception.InstanceRebootFailure
        ),
        lambda: nova_errors.as_nova_errors(INSTANCE),
        lambda: nova_errors.as_nova_build_errors(INSTANCE),
    ],
)
def test_user_reads_no_internal_url(context, text, shown):
    """A fault, which tenants read, has no URL or address of Ironic.

    The log has them, because Nova logs the cause of the exception too.
    """
    with pytest.raises(nova_exception.NovaException) as raised, context():
        raise errors.IronicUnavailable(f'Ironic did not answer: {text}')
    assert (
        str(raised.value)
        .rstrip('.')
        .endswith(f'Ironic did not answer: {shown}')
    )
    assert text in str(raised.value.__cause__)
