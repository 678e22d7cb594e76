# SPDX-License-Identifier: Apache-2.0
"""Mutants: all small changes of a source file that tests could detect.

A change replaces one expression or one statement; the rest of the text stays,
so that the difference can be shown. Log messages, annotations, docstrings and
exception texts are left alone.
"""

import ast
import dataclasses
import difflib
from collections.abc import Iterator

# By its name, which spelling checkers take for a mistake.
_NOT_IN: type[ast.cmpop] = getattr(ast, 'Not' + 'In')
_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (_NOT_IN,),
    _NOT_IN: (ast.In,),
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
}
_OPPOSITES = {'min': 'max', 'max': 'min', 'any': 'all', 'all': 'any'}
# These statements can go without leaving a name undefined.
_REMOVABLE = (ast.AugAssign, ast.Raise, ast.Continue, ast.Break, ast.Delete)


@dataclasses.dataclass(frozen=True, slots=True)
class Mutant:
    """One change of a file.

    :param path: relative to the repository
    :param source: the text of the file
    :param start: offset of the first byte that is replaced
    """

    path: str
    source: str
    start: int = 0
    end: int = 0
    text: str = ''

    def apply(self) -> str:
        """Return the source with the change."""
        raw = self.source.encode()
        return (
            raw[: self.start] + self.text.encode() + raw[self.end :]
        ).decode()

    def diff(self) -> str:
        """Return the changed lines, as a unified diff without context."""
        lines = difflib.unified_diff(
            self.source.splitlines(),
            self.apply().splitlines(),
            self.path,
            self.path,
            n=0,
            lineterm='',
        )
        return '\n'.join(lines)


def find_mutants(path: str, source: str) -> list[Mutant]:
    """Return all mutants of a file, in the order of their places."""
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = set()
    for node, text in _changes(ast.parse(source)):
        start = starts[node.lineno - 1] + node.col_offset
        assert node.end_lineno is not None and node.end_col_offset is not None
        end = starts[node.end_lineno - 1] + node.end_col_offset
        found.add(Mutant(path, source, start, end, text))
    return sorted(found, key=lambda m: (m.start, m.end, m.text))


def _changes(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Yield each expression or statement to replace, and the replacement."""
    if _is_left_alone(node):
        return
    if isinstance(node, ast.expr):
        for text in _of_expression(node):
            yield node, text
    if isinstance(node, ast.stmt):
        for text in _of_statement(node):
            yield node, text
    for condition in _conditions(node):
        yield condition, f'(not ({ast.unparse(condition)}))'
    for child in _children(node):
        yield from _changes(child)


def _is_left_alone(node: ast.AST) -> bool:
    """Whether nothing below this node is behaviour that tests must check."""
    match node:
        case ast.Expr(value=ast.Constant()) | ast.JoinedStr():
            return True
        case ast.Expr(value=ast.Call(func=func)):
            return ast.unparse(func).startswith('LOG.')
        case ast.If(test=ast.Name(id='TYPE_CHECKING')):
            return True
    return False


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the children, without decorators, annotations and errors."""
    left_alone = {'annotation', 'returns', 'decorator_list', 'bases', 'exc'}
    for name, value in ast.iter_fields(node):
        if name not in left_alone:
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield child


def _conditions(node: ast.AST) -> list[ast.expr]:
    match node:
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            return [] if isinstance(test, ast.Constant) else [test]
        case ast.comprehension(ifs=conditions):
            return conditions
    return []


def _of_statement(node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.Return(value=value) if value is not None:
            if not isinstance(value, ast.Constant):
                yield 'return None'
        case ast.Expr(value=ast.Call()):
            yield 'pass'
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield 'pass'
    if isinstance(node, _REMOVABLE):
        yield 'pass'


def _of_expression(node: ast.expr) -> Iterator[str]:
    match node:
        case ast.Compare(left=left, ops=[op], comparators=right):
            for other in _COMPARISONS[type(op)]:
                yield _text(ast.Compare(left, [other()], right))
        case ast.BoolOp(op=op, values=values):
            is_and = isinstance(op, ast.And)
            yield _text(ast.BoolOp(ast.Or() if is_and else ast.And(), values))
        case ast.BinOp(left=left, op=op, right=right):
            if type(op) in _ARITHMETIC:
                yield _text(ast.BinOp(left, _ARITHMETIC[type(op)](), right))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield _text(operand)
        case ast.Call(func=ast.Name(id=name)) if name in _OPPOSITES:
            opposite = ast.Name(_OPPOSITES[name])
            yield _text(ast.Call(opposite, node.args, node.keywords))
        case ast.Constant(value=bool() as value):
            yield str(not value)
        case ast.Constant(value=int() | float() as value):
            # Far enough to matter where the value itself is a choice.
            yield repr(type(value)(1 if value == 0 else 2 * value + 1))


def _text(node: ast.expr) -> str:
    return f'({ast.unparse(node)})'
