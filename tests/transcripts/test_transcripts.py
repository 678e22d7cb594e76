# SPDX-License-Identifier: Apache-2.0
"""Transcripts: events of `Assignment` as text, with the effects they cause.

`pytest tests/transcripts --rewrite` replaces the effects in the files.
"""

import pathlib

import pytest

from tests.transcripts.teller import Teller

STORIES = sorted(pathlib.Path(__file__).parent.glob('*.txt'))


def retold(story: str) -> str:
    """Return the transcript with the effects of the present code."""
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
    """The assignment returns the effects that the transcript shows."""
    written = path.read_text()
    told = retold(written)
    if request.config.getoption('--rewrite'):
        path.write_text(told)
    assert told == path.read_text()
