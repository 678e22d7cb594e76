# SPDX-License-Identifier: Apache-2.0
"""Builds ask Ironic in turns, and wait for their machines together."""

import threading

from ironic_compute.driver.turns import Turns

WAIT_S = 10.0


def test_who_asks_is_waited_for_and_its_end_counts_once() -> None:
    """There is no turn left until one is over."""
    turns, began = Turns(1), threading.Event()
    mine, theirs, last = turns.turn(), turns.turn(), turns.turn()
    mine.begin()

    def ask() -> None:
        theirs.begin()
        began.set()

    other = threading.Thread(target=ask)
    other.start()
    assert not began.wait(0.1)
    mine.end()
    assert began.wait(WAIT_S)
    other.join()
    mine.end()
    began.clear()
    third = threading.Thread(target=lambda: (last.begin(), began.set()))
    third.start()
    assert not began.wait(0.1)
    theirs.end()
    assert began.wait(WAIT_S)
    third.join()


def test_a_turn_that_never_began_has_no_end() -> None:
    """A build may fail before."""
    turns = Turns(1)
    turns.turn().end()
    first = turns.turn()
    first.begin()
    blocked = threading.Thread(target=turns.turn().begin)
    blocked.start()
    blocked.join(0.1)
    assert blocked.is_alive()
    first.end()
    blocked.join(WAIT_S)
    assert not blocked.is_alive()
