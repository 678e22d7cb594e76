# SPDX-License-Identifier: Apache-2.0
"""The error classes: which of them allow a retry, and their messages."""

import inspect

from resource_tracker import errors


def test_every_error_has_one_base_class():
    """A caller can catch all errors of the package as ``TrackerError``."""
    kinds = {kind for _, kind in inspect.getmembers(errors, inspect.isclass)}
    others = {k for k in kinds if not issubclass(k, errors.TrackerError)}
    assert others == {errors.Retriable}


def test_only_a_refused_request_is_not_tried_again():
    """Placement refuses an invalid request each time; others may succeed."""
    kinds = errors.PlacementError.__subclasses__()
    lasting = [k for k in kinds if not issubclass(k, errors.Retriable)]
    assert lasting == [errors.PlacementRefused]


def test_malformed_node_names_the_node_and_the_field():
    """The message has the node and the field that an operator must mend."""
    error = errors.MalformedNode('node-1', 'traits')
    assert str(error) == "Ironic's record of node node-1 has no usable traits"
    assert (error.node, error.field) == ('node-1', 'traits')


def test_claimed_node_names_the_node_and_the_consumer():
    """The message has the server that has claimed the node."""
    error = errors.NodeClaimed('node-1', 'server-1')
    assert str(error) == 'node node-1 is claimed by server-1'
    assert (error.node, error.consumer) == ('node-1', 'server-1')
