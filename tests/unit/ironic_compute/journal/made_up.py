# SPDX-License-Identifier: Apache-2.0
"""Made-up moves for tests."""

import random
from collections.abc import Iterable

from ironic_compute.journal.moves import Kind, Move, Reason

ODD = ('', 'ann on ctl-1', 'é\N{BLACK STAR}\udcff', 'a\nb"\\', '\x00 x')


def move(number: int = 0, **fields: object) -> Move:
    """Return the move of a node, so many seconds after 1970."""
    made = {
        'kind': Kind.PUSH.value,
        'reason': Reason.RING.value,
        'source': 'c1',
        'target': 'c2',
        'node': f'n{number}',
        **fields,
    }
    return Move(at_s=float(number), **made)  # type: ignore[arg-type]


def any_moves(rng: random.Random, count: int) -> list[Move]:
    """Return moves with odd texts, in the order of their times."""
    return [
        move(
            number,
            kind=rng.choice([*Kind, 'of a later release']),
            source=f'c{rng.randrange(3)}',
            target=f'c{rng.randrange(3)}',
            node=f'n{rng.randrange(9)}',
            host=rng.choice(ODD),
            server=rng.choice(ODD),
            seconds=rng.random(),
            by=rng.choice(ODD) * rng.randrange(3),
        )
        for number in range(count)
    ]


def newest_first(moves: Iterable[Move]) -> list[Move]:
    """Return moves as a reader gets them."""
    return sorted(moves, key=lambda each: each.at_s, reverse=True)
