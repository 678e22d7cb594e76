# SPDX-License-Identifier: Apache-2.0
"""What one scrape costs, from windows with and without scrapes."""

import pytest

from benchmarks.parts.scrapes import Spent


def test_a_scrape_costs_what_is_used_beyond_the_idle_share():
    """The share of a core without scrapes is taken off."""
    plain = Spent(cpu_s=0.6, seconds=100.0) + Spent(cpu_s=0.4, seconds=100.0)
    busy = Spent(2.0, 100.0, 90) + Spent(2.5, 100.0, 110)

    assert plain.cores == pytest.approx(0.005)
    assert busy.scrape_s(plain) == pytest.approx((4.5 - 1.0) / 200)


def test_windows_of_other_lengths_are_compared_by_their_shares():
    """The windows without scrapes may be longer or shorter."""
    plain = Spent(cpu_s=1.0, seconds=50.0)

    assert Spent(3.0, 100.0, 100).scrape_s(plain) == pytest.approx(0.01)
