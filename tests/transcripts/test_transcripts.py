# SPDX-License-Identifier: Apache-2.0
"""The stories of the protocol, as text: what goes in, what comes out.

`pytest tests/transcripts --rewrite` writes the answers anew.
"""

import pathlib

import pytest

from tests.transcripts.teller import Teller

STORIES = sorted(pathlib.Path(__file__).parent.glob('*.txt'))


def retold(story: str) -> str:
    """The story with the answers that the code gives now."""
    teller, lines = Teller(), []
    for line in story.splitlines():
        if line.startswith('> '):
            continue
        lines.append(line)
        if line.strip() and not line.startswith('#'):
            lines += [f'> {answer}' for answer in teller.say(line)]
    return '\n'.join(lines) + '\n'


@pytest.mark.parametrize('path', STORIES, ids=lambda path: path.stem)
def test_story(path: pathlib.Path, request: pytest.FixtureRequest) -> None:
    """The machine answers each line as the story says."""
    written = path.read_text()
    told = retold(written)
    if request.config.getoption('--rewrite'):
        path.write_text(told)
    assert told == path.read_text()
