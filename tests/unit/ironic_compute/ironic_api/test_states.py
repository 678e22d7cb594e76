# SPDX-License-Identifier: Apache-2.0
"""The tables of Ironic's states, compared with the installed Ironic."""

import pytest

from ironic_compute.ironic_api import states
from ironic_compute.ironic_api.states import (
    Meaning,
    PowerState,
    ProvisionState,
)


@pytest.fixture
def ironic_states():
    """Return the module of states of the installed Ironic."""
    return pytest.importorskip('ironic.common.states')


def test_every_state_of_ironic_is_known(ironic_states):
    """Every provision state of the installed Ironic is in the enum."""
    machine = pytest.importorskip('ironic.common.state_machine').machine
    shown = set(ironic_states.ALL_STATES) | set(machine.states)
    assert shown <= {state.value for state in ProvisionState}


def test_every_power_state_of_ironic_is_known(ironic_states):
    """Every power state of the installed Ironic is in the enum."""
    shown = {
        ironic_states.POWER_ON,
        ironic_states.POWER_OFF,
        ironic_states.REBOOT,
        ironic_states.ERROR,
    }
    assert shown == {p.value for p in PowerState} - {''}


def test_every_state_has_a_meaning():
    """No provision state lacks its meaning for Nova."""
    assert all(isinstance(s.meaning, Meaning) for s in ProvisionState)


def test_only_available_takes_a_build():
    """A node in any other state, also an unknown one, gets no instance."""
    takers = {
        s for s in ProvisionState if s.meaning is Meaning.CAN_TAKE_A_BUILD
    }
    assert takers == {ProvisionState.AVAILABLE}


def test_null_is_available():
    """Ironic's NOSTATE is null."""
    assert ProvisionState.parse(None) is ProvisionState.AVAILABLE


def test_unlisted_state_is_unknown_and_logged_once(caplog):
    """A state of a newer Ironic raises no error."""
    for _ in range(3):
        assert ProvisionState.parse('levitating') is ProvisionState.UNKNOWN
        assert PowerState.parse('glowing') is PowerState.UNKNOWN
    assert caplog.text.count('levitating') == 1
    assert caplog.text.count('glowing') == 1


def test_power_that_was_never_read_is_unknown():
    """Ironic shows null until it has read the power from the BMC."""
    assert PowerState.parse(None) is PowerState.UNKNOWN


def test_meaning_of_a_raw_state():
    """The function takes the text of Ironic's API."""
    assert states.meaning('deploy failed') is Meaning.FAILED
