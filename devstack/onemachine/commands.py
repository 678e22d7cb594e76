# SPDX-License-Identifier: Apache-2.0
"""What the parts of the command line of ``devstack/cloud`` are made of."""

import argparse


class Commands:
    """Adds commands to the parser, each with a description and examples."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self._commands = parser.add_subparsers(
            dest='command', required=True, metavar='COMMAND'
        )

    def add(
        self, name: str, text: str, more: str = '', *examples: str
    ) -> argparse.ArgumentParser:
        """Add one command.

        :param text: half a line for the list of commands
        :param more: the rest of the description
        :param examples: the arguments behind ``devstack/cloud``
        """
        lines = [f'  devstack/cloud {example}' for example in examples]
        return self._commands.add_parser(
            name,
            help=text,
            description=f'{text[0].upper()}{text[1:]}. {more}',
            epilog='\n'.join(['examples:', *lines]) if lines else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )


def count(text: str) -> int:
    """Parse a number of things that an argument names."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError('at least 1')
    return number
