# SPDX-License-Identifier: Apache-2.0
"""What was demanded, what was seen, and whether it holds."""

import dataclasses
import pathlib
from collections.abc import Sequence

from onemachine import content
from onemachine.progress import say


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report; ``holds`` is None for a mere figure."""

    scenario: str
    what: str
    seen: str
    holds: bool | None = None

    @property
    def verdict(self) -> str:
        """How the line ends."""
        return {True: 'holds', False: 'DOES NOT HOLD', None: ''}[self.holds]


class Report:
    """Collects findings, saying each as it comes."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.scenario = ''

    def figure(self, what: str, seen: object) -> None:
        """Note a figure."""
        self._add(Finding(self.scenario, what, str(seen)))

    def demand(self, holds: bool, what: str, seen: object) -> None:
        """Note whether something that is demanded holds."""
        self._add(Finding(self.scenario, what, str(seen), holds))

    def none(self, what: str, found: Sequence[object]) -> None:
        """Demand that there is none of something; show the first few."""
        shown = '; '.join(str(one) for one in found[:5])
        seen = f'{len(found)}: {shown}' if found else '0'
        self.demand(not found, what, seen)

    def _add(self, finding: Finding) -> None:
        self.findings.append(finding)
        say(f'{finding.what}: {finding.seen} {finding.verdict}'.rstrip())

    @property
    def all_hold(self) -> bool:
        """Whether everything demanded holds."""
        return all(f.holds is not False for f in self.findings)

    def table(self) -> str:
        """Return all findings as a table."""
        rows = [(f.scenario, f.what, f.seen, f.verdict) for f in self.findings]
        return content.table(('Scenario', 'What', 'Seen', ''), rows)

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
        ]
        path.write_text('\n'.join(lines))
