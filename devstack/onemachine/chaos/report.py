# SPDX-License-Identifier: Apache-2.0
"""The report of the scenarios: demands, observed values, verdicts."""

import dataclasses
import pathlib
from collections.abc import Sequence

from onemachine import content
from onemachine.progress import print_line


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report; ``holds`` is None for a mere figure."""

    scenario: str
    what: str
    seen: str
    holds: bool | None = None

    @property
    def verdict(self) -> str:
        """The end of the line."""
        return {True: 'holds', False: 'DOES NOT HOLD', None: ''}[self.holds]


class Report:
    """Collects findings and prints each at once."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self._tables: list[str] = []
        self.scenario = ''

    def figure(self, what: str, seen: object) -> None:
        """Add a figure."""
        self._add(Finding(self.scenario, what, str(seen)))

    def demand(self, holds: bool, what: str, seen: object) -> None:
        """Add whether a demand holds."""
        self._add(Finding(self.scenario, what, str(seen), holds))

    def none(self, what: str, found: Sequence[object]) -> None:
        """Demand that a list is empty; print its first items otherwise."""
        shown = '; '.join(str(one) for one in found[:5])
        seen = f'{len(found)}: {shown}' if found else '0'
        self.demand(not found, what, seen)

    def _add(self, finding: Finding) -> None:
        self.findings.append(finding)
        print_line(
            f'{finding.what}: {finding.seen} {finding.verdict}'.rstrip()
        )

    @property
    def all_hold(self) -> bool:
        """Whether all demands hold."""
        return all(f.holds is not False for f in self.findings)

    def table(self) -> str:
        """Return all findings as a table."""
        rows = [(f.scenario, f.what, f.seen, f.verdict) for f in self.findings]
        return content.table(('Scenario', 'What', 'Seen', ''), rows)

    def add_table(
        self,
        heading: str,
        columns: Sequence[str],
        rows: Sequence[Sequence[object]],
    ) -> None:
        """Print a further table, and add it to the written report."""
        print(f'\n{heading}\n\n{content.table(columns, rows)}\n')
        lines = [columns, ['---'] * len(columns), *rows]
        cells = (' | '.join(str(cell) for cell in line) for line in lines)
        body = '\n'.join(f'| {line} |' for line in cells)
        self._tables.append(f'## {heading}\n\n{body}\n')

    def write(self, path: pathlib.Path, heading: str) -> None:
        """Write the report as Markdown."""
        lines = [
            f'# {heading}',
            '',
            '| Scenario | What | Seen | |',
            '| --- | --- | --- | --- |',
            *(
                f'| {f.scenario} | {f.what} | {f.seen} | {f.verdict} |'
                for f in self.findings
            ),
            '',
            *self._tables,
        ]
        path.write_text('\n'.join(lines))
