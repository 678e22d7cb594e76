# SPDX-License-Identifier: Apache-2.0
"""Our errors, and what they are to Nova."""

import types

import pytest
from nova import exception as nova_exception

from ironic_compute import errors

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
def test_each_error_has_its_counterpart(error, wanted):
    """What Nova tries elsewhere, and what it gives up, follows the error."""
    assert type(errors.to_nova(error('it broke'), INSTANCE)) is wanted


def test_text_reaches_the_user():
    """The sentence is what a user sees as the fault of a server."""
    exc = errors.to_nova(errors.DeployFailed('Node n did not deploy'))
    assert 'Node n did not deploy' in str(exc)


def test_instance_is_named_where_nova_names_it():
    """An instance that is not found is named by its uuid."""
    exc = errors.to_nova(errors.NodeNotFound('no node'), INSTANCE)
    assert INSTANCE.uuid in str(exc)


def test_only_what_may_pass_is_retriable():
    """A locked node and a silent Ironic may do better later."""
    kinds = {
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type)
        and issubclass(kind, errors.Retriable)
        and issubclass(kind, errors.IronicComputeError)
    }
    assert kinds == {
        errors.NodeLocked,
        errors.IronicUnavailable,
        errors.IronicNotReached,
    }
    untouched = {kind for kind in kinds if issubclass(kind, errors.Untouched)}
    assert untouched == {errors.NodeLocked, errors.IronicNotReached}
