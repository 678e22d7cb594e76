# SPDX-License-Identifier: Apache-2.0
"""Selects the tests of tempest, with a reason for each one left out.

The reasons are in a plain file: on each line a regular expression, two
spaces or more, and the reason in words. A test belongs to the first line
that matches its name.
"""

import collections
import dataclasses
import pathlib
import re
from collections.abc import Iterable, Sequence

from onemachine.layout import REPOSITORY
from onemachine.progress import CloudError

LEFT_OUT = REPOSITORY / 'devstack' / 'tempest-left-out.txt'
# Tests of the compute API, and scenarios of users.
CANDIDATES = r'^tempest\.(serial_tests\.)?(api\.compute|scenario)\.'


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """One line of the file."""

    pattern: str
    reason: str

    def matches(self, name: str) -> bool:
        """Return whether a test is left out for this reason."""
        return re.search(self.pattern, name) is not None


@dataclasses.dataclass(frozen=True, slots=True)
class Selection:
    """The ids of the chosen tests, and the names left out, by rule."""

    chosen: Sequence[str]
    left_out: dict[Rule, list[str]]


def name_of(test_id: str) -> str:
    """Return the name of a test, without the tags in its id."""
    return test_id.partition('[')[0]


def read_rules(path: pathlib.Path = LEFT_OUT) -> list[Rule]:
    """Read the file of rules."""
    lines = path.read_text().splitlines()
    return [
        parse_rule(line)
        for line in lines
        if line.strip() and not line.startswith('#')
    ]


def parse_rule(line: str) -> Rule:
    """Parse one line.

    :raises CloudError: it has no reason, or no regular expression
    """
    pattern, _, reason = line.partition('  ')
    if not reason.strip():
        raise CloudError(f'this line gives no reason: {line}')
    try:
        re.compile(pattern)
    except re.error as exc:
        raise CloudError(f'{pattern} is no regular expression: {exc}') from exc
    return Rule(pattern, reason.strip())


def select(listed: Iterable[str], rules: Sequence[Rule]) -> Selection:
    """Return the selection of all tests that tempest has.

    :param listed: the ids of all tests
    :raises CloudError: a rule matches no test, so it is out of date
    """
    chosen: list[str] = []
    left_out: dict[Rule, list[str]] = collections.defaultdict(list)
    for test_id in sorted(set(listed)):
        name = name_of(test_id)
        if not re.search(CANDIDATES, name):
            continue
        rule = next((r for r in rules if r.matches(name)), None)
        if rule is None:
            chosen.append(test_id)
        else:
            left_out[rule].append(name)
    stale = [rule.pattern for rule in rules if rule not in left_out]
    if stale:
        raise CloudError(f'{LEFT_OUT.name}: no test matches {stale[0]}')
    return Selection(chosen, dict(left_out))
