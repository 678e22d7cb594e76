# SPDX-License-Identifier: Apache-2.0
"""The arguments of a build: its node and its image."""

import dataclasses

import pytest

from ironic_compute import errors

from . import fake


def test_build_without_a_node_is_invalid():
    """A server whose record names no node cannot be built."""
    request = dataclasses.replace(
        fake.build_request(), instance=fake.server(node=None)
    )
    with pytest.raises(errors.DeployInvalid):
        request.node  # noqa: B018


@pytest.mark.parametrize(
    ('volumes', 'image_id'),
    [([], 'img'), ([fake.Volume(1)], 'img'), ([fake.Volume(0)], None)],
)
def test_image_is_that_of_the_root_disk(volumes, image_id):
    """A build has no image if its root disk is a volume."""
    assert fake.build_request(volumes).image_id == image_id
