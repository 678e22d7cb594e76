# SPDX-License-Identifier: Apache-2.0
"""instance_info: the description of a server on its node."""

from ironic_compute.driver import instance_info

from . import fake


def test_instance_info_describes_the_server():
    """It has image, sizes, owner, capabilities and traits of the server."""
    bench = fake.bench(properties={'local_gb': 100})
    bench.spawn(fake.server())
    info = bench.ironic.infos[fake.NODE]
    assert info['image_source'] == 'img'
    assert info['root_gb'] == '20'
    assert info['local_gb'] == '100'
    assert info['nova_host_id'] == 'bm-1'
    assert info['traits'] == ['CUSTOM_FAST']
    assert info['capabilities'] == '{"boot_mode": "uefi"}'


def test_instance_info_of_a_rebuild_has_preserve_ephemeral():
    """Only a rebuild sets ``preserve_ephemeral``."""
    facts = fake.bench().ironic.nodes[fake.NODE]

    def paths(preserve_ephemeral):
        patches = instance_info.build_patches(
            facts, fake.build_request(), preserve_ephemeral
        )
        return {patch['path']: patch['value'] for patch in patches}

    assert '/instance_info/preserve_ephemeral' not in paths(None)
    assert paths(True)['/instance_info/preserve_ephemeral'] == 'True'


def test_instance_info_has_no_image_for_a_root_volume():
    """A server that boots from a volume has no ``image_source``."""
    facts = fake.bench().ironic.nodes[fake.NODE]
    patches = instance_info.build_patches(
        facts, fake.build_request(volumes=[fake.Volume()])
    )
    assert '/instance_info/image_source' not in {
        patch['path'] for patch in patches
    }


def test_former_instance_info_is_restored():
    """A key that Ironic masks is left as it is."""
    former = {'a': '1', 'b': '2', 'c': '******', 'd': '4'}
    present = {'a': '1', 'b': '3', 'c': 'new', 'e': '5'}
    assert instance_info.restoring_patches(former, present) == [
        {'op': 'remove', 'path': '/instance_info/e'},
        {'op': 'add', 'path': '/instance_info/b', 'value': '2'},
        {'op': 'add', 'path': '/instance_info/d', 'value': '4'},
    ]
    assert instance_info.restoring_patches(former, former) == []
