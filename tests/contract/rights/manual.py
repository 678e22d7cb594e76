# SPDX-License-Identifier: Apache-2.0
"""Reads the tables of rights of the manual's page about security."""

import pathlib
import re

PAGE = (
    pathlib.Path(__file__).resolve().parents[3]
    / 'doc/source/admin/security.rst'
)


def rights(service: str) -> frozenset[str]:
    """Return the policy rules in the table of a service.

    :param service: the table's caption begins with it
    """
    _, found, rest = PAGE.read_text().partition(f'.. list-table:: {service}: ')
    assert found, service
    body = re.split(r'\n(?=\S)', rest, maxsplit=1)[0]
    first_cells = re.findall(r'^   \* - (.+)$', body, re.M)
    return frozenset(
        rule for cell in first_cells for rule in re.findall('``(.+?)``', cell)
    )
