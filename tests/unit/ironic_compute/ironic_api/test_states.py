# SPDX-License-Identifier: Apache-2.0
"""Ironic's states as we know them, against Ironic's own."""

import pytest

from ironic_compute.ironic_api import states
from ironic_compute.ironic_api.states import (
    Meaning,
    PowerState,
    ProvisionState,
)


@pytest.fixture
def ironic_states():
    """Return the module of the Ironic that is installed."""
    return pytest.importorskip('ironic.common.states')


def test_every_state_of_ironic_is_known(ironic_states):
    """Whatever a node of this Ironic may be in has a name here."""
    machine = pytest.importorskip('ironic.common.state_machine').machine
    shown = set(ironic_states.ALL_STATES) | set(machine.states)
    assert shown <= {state.value for state in ProvisionState}


def test_every_power_state_of_ironic_is_known(ironic_states):
    """On, off, rebooting and error are all there is to see."""
    shown = {
        ironic_states.POWER_ON,
        ironic_states.POWER_OFF,
        ironic_states.REBOOT,
        ironic_states.ERROR,
    }
    assert shown == {p.value for p in PowerState} - {''}


def test_every_state_means_something():
    """The table has no hole."""
    assert all(isinstance(s.meaning, Meaning) for s in ProvisionState)


def test_only_available_takes_a_build():
    """No other state, an unknown one least of all, may get an instance."""
    takers = {
        s for s in ProvisionState if s.meaning is Meaning.CAN_TAKE_A_BUILD
    }
    assert takers == {ProvisionState.AVAILABLE}


def test_null_is_the_old_word_for_available():
    """Ironic's NOSTATE is null."""
    assert ProvisionState.parse(None) is ProvisionState.AVAILABLE


def test_tomorrows_state_is_unknown_and_said_once(caplog):
    """A new Ironic crashes nothing and does not fill the log."""
    for _ in range(3):
        assert ProvisionState.parse('levitating') is ProvisionState.UNKNOWN
        assert PowerState.parse('glowing') is PowerState.UNKNOWN
    assert caplog.text.count('levitating') == 1
    assert caplog.text.count('glowing') == 1


def test_power_that_was_never_read_is_unknown():
    """Null is what Ironic shows before the first look at the BMC."""
    assert PowerState.parse(None) is PowerState.UNKNOWN


def test_meaning_reads_ironics_word():
    """The short cut gives what the table says."""
    assert states.meaning('deploy failed') is Meaning.FAILED
