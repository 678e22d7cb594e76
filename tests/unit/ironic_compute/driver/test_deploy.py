# SPDX-License-Identifier: Apache-2.0
"""Build (spawn) of servers: success, failures, and the clean-up."""

import re
import threading

import nova.conf
import pytest
from nova import exception as nova_exception

from ironic_compute import errors

from . import fake

CONF = nova.conf.CONF


def test_build_ends_active():
    """A build reserves, attaches, describes, deploys and waits."""
    bench = fake.bench()
    bench.spawn(fake.server())
    assert bench.ironic.nodes[fake.NODE].provision_state == 'active'
    assert bench.ironic.attached[fake.NODE] == [fake.VIF]
    assert bench.ironic.names() == [
        'reserve',
        'vif_attach',
        'patch',
        'active',
    ]


def test_feed_reads_a_node_that_a_build_did_not_find():
    """A build requests a read by the feed if Ironic does not have its node.

    The feed then removes the node; otherwise the next build would get it.
    """
    bench = fake.bench()
    requested = []

    class _Feed(fake.FakeFeed):
        def request_read(self, node):
            requested.append(node)

    feed = _Feed(bench.ironic, bench.node_cache)
    bench.driver.set_up(bench.ironic, bench.node_cache, feed, bench.clock)
    bench.ironic.nodes.clear()
    with pytest.raises(nova_exception.ComputeResourcesUnavailable):
        bench.spawn(fake.server())
    assert set(requested) == {fake.NODE}


def test_failed_deploy_raises_the_error_of_ironic_and_frees_the_node():
    """After a failed deploy Nova tries another node; the user reads why."""
    bench = fake.bench()
    bench.ironic.fails['active'] = 'deploy failed'
    with pytest.raises(
        nova_exception.InstanceDeployFailure, match='it is broken'
    ):
        bench.spawn(fake.server())
    assert bench.is_free()
    assert bench.ironic.nodes[fake.NODE].provision_state == 'cleaning'


@pytest.mark.parametrize('request_name', ['patch', 'vif_attach', 'active'])
def test_refused_step_frees_the_node(request_name):
    """If Ironic refuses a step, all steps before it are undone."""
    bench = fake.bench()
    bench.ironic.refused[request_name] = 'no'
    with pytest.raises(nova_exception.InstanceDeployFailure):
        bench.spawn(fake.server())
    bench.ironic.refused.clear()
    if request_name == 'patch':  # which clearing needs as well
        bench.driver.destroy(None, fake.server(), None)
    assert bench.is_free()


@pytest.mark.parametrize(
    'reason',
    [
        'Image 8f1c could not be found.',
        'Image 8f1c is unacceptable: The image is required to be in an '
        'active state.',
        'Image 8f1c is missing the following properties: kernel_id',
        'Not authorized for image 8f1c.',
        'Invalid image href 8f1c.',
        'Validation of image href 8f1c failed, reason: 404',
        'The requested image is not valid for use.',
        'The supplied image checksum is invalid or does not match.',
    ],
)
def test_invalid_image_ends_the_build(reason):
    """Nova tries no other node for an image that Ironic cannot deploy."""
    bench = fake.bench()
    bench.ironic.invalid['deploy'] = reason
    with pytest.raises(
        nova_exception.BuildAbortException, match=re.escape(reason)
    ):
        bench.spawn(fake.server())
    assert bench.is_free()


@pytest.mark.parametrize(
    ('interface', 'reason'),
    [
        ('power', 'no BMC address'),
        ('deploy', 'Node n does not have any port associated with it.'),
        ('deploy', "Missing are: ['deploy_kernel', 'deploy_ramdisk']"),
        ('storage', 'no volume connector'),
        (
            'deploy',
            'Cannot validate image information for node n because one or more '
            "parameters are missing from its instance_info: ['image_source']",
        ),
        ('deploy', 'Invalid value for image_download_source: "ftp".'),
        ('deploy', 'image_no_proxy should be a list of host names'),
        ('deploy', "missing: ['[deploy]http_image_subdir']"),
        ('deploy', 'Memory size is too small for requested image'),
    ],
)
def test_invalid_node_sends_the_build_to_another_node(interface, reason):
    """A node that is enrolled badly must not end each build it gets."""
    bench = fake.bench()
    bench.ironic.invalid[interface] = reason
    with pytest.raises(nova_exception.InstanceDeployFailure):
        bench.spawn(fake.server())
    assert bench.is_free()


def test_image_that_is_refused_at_the_deploy_ends_the_build():
    """Nova tries no other node if Ironic refuses the image at the deploy."""
    bench = fake.bench()
    bench.ironic.refused['active'] = 'InvalidImage: unsafe'
    with pytest.raises(nova_exception.BuildAbortException):
        bench.spawn(fake.server())


@pytest.mark.parametrize(
    'fields',
    [
        {'instance_uuid': fake.OTHER},
        {'maintenance': True},
        {'provision_state': 'cleaning'},
        {'power_state': None},
    ],
)
def test_unfit_node_is_rescheduled(fields):
    """A node that cannot take a build is not changed."""
    bench = fake.bench(**fields)
    with pytest.raises(nova_exception.ComputeResourcesUnavailable):
        bench.driver.prepare_for_spawn(fake.server())
    assert not bench.ironic.calls


def test_late_reservation_of_another_node_is_undone():
    """Ironic carried out a request of an earlier build of the server late.

    Its user could not unshelve the server until recovery had freed that node.
    """
    bench = fake.bench()
    bench.ironic.add(uuid=fake.OTHER, instance_uuid=fake.SERVER)
    bench.ironic.attached[fake.OTHER] = [fake.VIF]
    bench.spawn(fake.server())
    assert bench.ironic.nodes[fake.NODE].provision_state == 'active'
    assert bench.ironic.nodes[fake.OTHER].instance_uuid is None
    assert bench.ironic.attached[fake.OTHER] == []


def test_node_of_a_failed_deploy_of_the_server_is_freed():
    """Ironic did not answer when the earlier build was undone.

    The server could not be unshelved on any node until recovery had freed it.
    """
    bench = fake.bench()
    bench.ironic.add(
        uuid=fake.OTHER,
        instance_uuid=fake.SERVER,
        provision_state='deploy failed',
    )
    bench.spawn(fake.server())
    assert bench.ironic.nodes[fake.NODE].provision_state == 'active'
    assert bench.ironic.nodes[fake.OTHER].instance_uuid is None


@pytest.mark.parametrize('state', ['active', 'deploying', 'rescue failed'])
def test_node_that_has_the_server_deployed_keeps_it(state):
    """A build frees only a node that has not deployed the server."""
    bench = fake.bench()
    bench.ironic.add(
        uuid=fake.OTHER, instance_uuid=fake.SERVER, provision_state=state
    )
    with pytest.raises(nova_exception.ComputeResourcesUnavailable):
        bench.driver.prepare_for_spawn(fake.server())
    assert bench.ironic.nodes[fake.OTHER].instance_uuid == fake.SERVER
    assert bench.is_free()


def test_locked_node_is_waited_for():
    """A build reserves a locked node when the lock is released."""
    bench = fake.bench()
    bench.ironic.locked_count = 2
    bench.spawn(fake.server())
    assert bench.ironic.nodes[fake.NODE].provision_state == 'active'


def test_node_that_stays_locked_is_given_up():
    """A build does not wait for a lock without limit."""
    bench = fake.bench()
    bench.ironic.locked_count = 10_000
    with pytest.raises(nova_exception.ComputeResourcesUnavailable):
        bench.driver.prepare_for_spawn(fake.server())


def test_failed_spawn_cleanup_frees_the_node():
    """The node is free again if the networks of the server failed."""
    bench = fake.bench()
    bench.driver.prepare_for_spawn(fake.server())
    bench.driver.failed_spawn_cleanup(fake.server())
    assert bench.is_free()


def test_deploy_of_another_process_is_waited_for():
    """A worker waits for a deploy that its predecessor requested."""
    bench = fake.bench(
        instance_uuid=fake.SERVER, provision_state='wait call-back'
    )
    bench.ironic.change(fake.NODE, provision_state='active')
    bench.node_cache.update_facts(bench.ironic.nodes[fake.NODE])
    bench.driver.wait_for_deploy(fake.server(), fake.NODE)


def test_old_state_in_the_cache_does_not_end_a_deploy():
    """An older state in the node cache is checked by a read of Ironic."""
    bench = fake.bench(instance_uuid=fake.SERVER, provision_state='active')
    bench.ironic.change(
        fake.NODE, provision_state='deploy failed', last_error='late'
    )
    with pytest.raises(errors.DeployFailed, match='late'):
        bench.driver.wait_for_deploy(fake.server(), fake.NODE)


def test_deploy_fails_if_the_node_has_another_server():
    """The node of another server fails the deploy and is not changed."""
    bench = fake.bench(instance_uuid=fake.OTHER, provision_state='active')
    with pytest.raises(errors.DeployFailed, match='taken away'):
        bench.driver.wait_for_deploy(fake.server(), fake.NODE)
    assert not bench.ironic.calls


@pytest.mark.parametrize('state', ['servicing', 'service wait', 'rescue'])
def test_deployed_node_may_be_serviced_at_once(state):
    """An operator's automation may act before the build has seen it active.

    The build would remove the server, and deploy another node.
    """
    bench = fake.bench(instance_uuid=fake.SERVER, provision_state=state)
    bench.driver.wait_for_deploy(fake.server(), fake.NODE)
    assert not bench.ironic.calls


class _TakenWhileLocked:
    """An Ironic in which another user deploys the node before its lock ends.

    :param bench: whose Ironic this is
    """

    def __init__(self, bench):
        self._reserve = bench.ironic.reserve_node
        self._bench = bench
        self._is_taken = False

    def __call__(self, node, instance_uuid):
        if not self._is_taken:
            self._is_taken = True
            self._bench.ironic.change(node, provision_state='active')
            raise errors.NodeLocked('a state transition is in progress')
        return self._reserve(node, instance_uuid)


def test_node_that_another_user_deploys_first_stays_deployed():
    """Nova destroys what the failed build has left, and so what runs there.

    The reservation was repeated until the other deploy had ended.
    """
    bench, server = fake.bench(), fake.server()
    bench.ironic.reserve_node = _TakenWhileLocked(bench)
    with pytest.raises(nova_exception.NovaException):
        bench.spawn(server)
    bench.driver.destroy(None, server, fake.network())
    node = bench.ironic.nodes[fake.NODE]
    assert (node.provision_state, node.instance_uuid) == ('active', None)
    assert bench.ironic.names() == ['reserve', 'release']


class _TimedOutServer(fake.UnsavedServer):
    """A server that Nova has put to ERROR because its build took too long."""

    def refresh(self, *args, **kwargs):
        self.vm_state = 'error'


def test_build_that_ends_after_its_timeout_stays_in_error():
    """``instance_build_timeout`` ends a build, and its node is free again.

    Before, the server was in ERROR, and ACTIVE when the deploy ended.
    """
    bench, server = fake.bench(), fake.server()
    server.__class__ = _TimedOutServer
    CONF.set_override('instance_build_timeout', 60)
    try:
        with pytest.raises(
            nova_exception.BuildAbortException, match='instance_build_timeout'
        ):
            bench.spawn(server)
    finally:
        CONF.clear_override('instance_build_timeout')
    assert bench.is_free()


def test_build_in_error_does_not_wait_for_its_deploy():
    """A build that Nova has put to ERROR ends before its deploy does."""
    bench = fake.bench(
        instance_uuid=fake.SERVER, provision_state='wait call-back'
    )
    server = fake.server()
    server.__class__ = _TimedOutServer
    ended = []

    def wait():
        try:
            bench.driver.wait_for_deploy(server, fake.NODE)
        except errors.IronicComputeError as exc:
            ended.append(exc)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    while thread.is_alive():
        bench.clock.advance(31)
        thread.join(0.2)
    assert [type(exc) for exc in ended] == [errors.DeployInvalid]
