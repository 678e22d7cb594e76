# SPDX-License-Identifier: Apache-2.0
"""Commands whose help shows paragraphs and examples as they are written.

argparse makes one paragraph of a description, in which one example runs into
the next. And it takes an empty word for a name.
"""

import argparse
from typing import Any

from cliff import command

from ironic_compute import config


class ExplainedCommand(command.Command):
    """A command that is explained by the docstring of its class.

    A paragraph of the docstring whose lines are indented is shown line by
    line; the others are wrapped at the width of the terminal.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser with the arguments of the command."""
        parser = super().get_parser(prog_name)
        parser.formatter_class = _keeping_paragraphs(parser.formatter_class)
        return parser

    def run(self, parsed_args: Any) -> int:
        """Run the command; return the exit status.

        :raises errors.ConfigError: an option of Nova has a value that is not
            valid; oslo.config's own error shows the file as an object
        """
        with config.translated_values():
            status: int = super().run(parsed_args)
        return status


def given_name(text: str) -> str:
    """Parse the name of a host or node.

    A request for a host without a name would go to the queue that the workers
    of all hosts read, and any of them would carry it out for its own host.

    :raises argparse.ArgumentTypeError: it is empty
    """
    if not text.strip():
        raise argparse.ArgumentTypeError(
            'the name is empty; is a variable of the shell not set?'
        )
    return text


def _keeping_paragraphs(base: Any) -> Any:
    """Return cliff's class of formatters, with descriptions as written."""

    class Formatter(base):
        def _fill_text(self, text: str, width: int, indent: str) -> str:
            fill = super()._fill_text
            return '\n\n'.join(
                paragraph
                if paragraph.startswith(' ')
                else fill(paragraph, width, indent)
                for paragraph in text.split('\n\n')
            )

    return Formatter
