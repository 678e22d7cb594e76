# SPDX-License-Identifier: Apache-2.0
"""When a message is acknowledged, and what a second delivery does."""

import pytest

from ironic_compute import delivery
from ironic_compute.delivery import Deliveries, Delivery


class _Acks:
    """Records the acknowledgements of the deliveries of one message."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def of(self, name: str):
        return lambda: self.sent.append(name)


@pytest.fixture
def acks() -> _Acks:
    return _Acks()


def _received(deliveries: Deliveries, acks: _Acks) -> Delivery:
    assert deliveries.receive('m1', acks.of('first'))
    found = deliveries.find('m1')
    assert found is not None
    return found


def test_message_is_acknowledged_when_its_handler_has_ended(
    acks: _Acks,
) -> None:
    """Until then RabbitMQ keeps the message."""
    message = _received(Deliveries(), acks)
    with message.handled():
        assert delivery.current() is message
        assert acks.sent == []
    assert acks.sent == ['first']
    assert delivery.current() is None


def test_kept_message_is_acknowledged_where_its_work_ends(
    acks: _Acks,
) -> None:
    """A build goes on in another thread after its handler returned."""
    message = _received(Deliveries(), acks)
    with message.handled():
        message.keep()
    assert acks.sent == []
    with message.continued():
        assert acks.sent == []
    assert acks.sent == ['first']


def test_message_is_acknowledged_once(acks: _Acks) -> None:
    """A deploy that Ironic took over acknowledges before its thread ends."""
    message = _received(Deliveries(), acks)
    with message.continued():
        delivery.acknowledge_current()
        assert acks.sent == ['first']
    assert acks.sent == ['first']


def test_error_of_the_work_acknowledges_too(acks: _Acks) -> None:
    """Nova has recorded the error; building again would not help."""
    message = _received(Deliveries(), acks)
    with pytest.raises(ValueError, match='bad'), message.continued():
        raise ValueError('bad')
    assert acks.sent == ['first']


def test_second_delivery_during_the_work_is_acknowledged_instead(
    acks: _Acks,
) -> None:
    """The connection of the first delivery is gone; no second work begins."""
    deliveries = Deliveries()
    message = _received(deliveries, acks)
    assert not deliveries.receive('m1', acks.of('second'))
    message.acknowledge()
    assert acks.sent == ['second']


@pytest.mark.parametrize('is_redelivered', [False, True])
def test_second_delivery_on_the_same_channel_is_acknowledged_with_the_first(
    acks: _Acks, is_redelivered: bool
) -> None:
    """It is a copy that the sender has sent, or the only one that is left.

    The servers of RabbitMQ may lose each other while the connection of the
    worker lives: then a quorum queue takes the message back, and delivers it
    again on the same channel. An acknowledgement of the first delivery has no
    effect after that.
    """
    deliveries = Deliveries()
    assert deliveries.receive('m1', acks.of('first'), channel='one')
    assert not deliveries.receive(
        'm1', acks.of('second'), is_redelivered, channel='one'
    )
    assert acks.sent == []
    message = deliveries.find('m1')
    assert message is not None
    message.acknowledge()
    assert acks.sent == ['first', 'second']


def test_second_delivery_after_the_work_is_acknowledged_at_once(
    acks: _Acks,
) -> None:
    """The first acknowledgement was lost on its way."""
    deliveries = Deliveries()
    _received(deliveries, acks).acknowledge()
    assert not deliveries.receive('m1', acks.of('second'))
    assert acks.sent == ['first', 'second']


def test_thread_without_a_message_acknowledges_nothing() -> None:
    """Recovery and periodic tasks call the same code of the driver."""
    delivery.acknowledge_current()
    assert Deliveries().find('m1') is None
    assert Deliveries().find(None) is None
