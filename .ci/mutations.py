"""What is changed for mutation testing: every place of a module at which one operator, constant, argument or statement can be another."""

import ast
import collections
import copy
import os
import pathlib

PLAIN = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")
COMPARED = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
REPLACED = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
}
OPPOSITE = {"min": "max", "max": "min", "any": "all", "all": "any"}


def wordy(node):
    """Return whether a node is text."""
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))


def changed(node, **fields):
    """Return a copy with other fields."""
    other = copy.copy(node)
    for name, value in fields.items():
        setattr(other, name, value)
    return other


def variants(node):
    """Yield what a node is replaced by, one change each."""
    match node:
        case ast.Compare():
            for i, operator in enumerate(node.ops):
                for kind in COMPARED[type(operator)]:
                    yield changed(node, ops=[*node.ops[:i], kind(), *node.ops[i + 1 :]])
        case ast.BoolOp():
            yield changed(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
        case ast.UnaryOp():
            yield node.operand
        case ast.BinOp() | ast.AugAssign():
            sides = (node.target, node.value) if isinstance(node, ast.AugAssign) else (node.left, node.right)
            if type(node.op) in REPLACED and not any(map(wordy, sides)):
                yield changed(node, op=REPLACED[type(node.op)]())
        case ast.Constant(value=bool()):
            yield changed(node, value=not node.value)
        case ast.Constant(value=int() | float()):
            yield changed(
                node, value=node.value + 1 if isinstance(node.value, int) else 2 * node.value + (node.value == 0)
            )
            if node.value == 1 and isinstance(node.value, int):
                yield changed(node, value=0)
        case ast.Slice():
            for name in ("lower", "upper"):
                bound = getattr(node, name)
                if bound is not None and not isinstance(bound, ast.Constant):
                    yield changed(node, **{name: ast.BinOp(bound, ast.Add(), ast.Constant(1))})
        case ast.Call():
            if isinstance(node.func, ast.Name) and node.func.id in OPPOSITE:
                yield changed(node, func=changed(node.func, id=OPPOSITE[node.func.id]))
            first = node.args[:2]
            tested = isinstance(node.func, ast.Name) and node.func.id in (
                "isinstance",
                "getattr",
                "hasattr",
                "setattr",
                "min",
                "max",
            )
            if len(first) == 2 and not tested and not any(isinstance(one, ast.Starred) or wordy(one) for one in first):
                yield changed(node, args=[*first[::-1], *node.args[2:]])
            for i, keyword in enumerate(node.keywords):
                if keyword.arg not in (None, "strict"):
                    yield changed(node, keywords=node.keywords[:i] + node.keywords[i + 1 :])
        case ast.If() | ast.While() | ast.IfExp() if not isinstance(
            node.test, ast.Compare | ast.UnaryOp | ast.Constant
        ):
            yield changed(node, test=ast.UnaryOp(ast.Not(), node.test))
        case ast.Return() if node.value is not None and not (
            isinstance(node.value, ast.Constant) and node.value.value is None
        ):
            yield changed(node, value=ast.Constant(None))
        case ast.Raise() | ast.Expr():
            yield ast.Pass()
        case ast.Assign() if not isinstance(node.targets[0], ast.Name | ast.Tuple):
            yield ast.Pass()
        case ast.Break():
            yield ast.Continue()
        case ast.Continue():
            yield ast.Pass()
    if isinstance(node, ast.AugAssign):
        yield ast.Pass()


def left_alone(node):
    """Return whether nothing is changed in a node: what is no behaviour, or words."""
    match node:
        case ast.Assert() | ast.Import() | ast.ImportFrom() | ast.JoinedStr():
            return True
        case ast.Expr(value=ast.Constant()):
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="_log")))):
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.keyword(arg="strict"):  # that of zip is an assertion
            return True
    return False


def places(node, function="", compiled=False, owner=None, runs=False):
    """Yield (node, parent, field, index, statement, function, whether it is compiled, and runs later than the import)."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "type_params", "bases", "type") or isinstance(
            node, ast.Raise
        ):
            continue
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(child, ast.AST) or left_alone(child):
                continue
            inside, loops = function, compiled
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                inside = f"{function}.{child.name}".strip(".")
                loops = compiled or any(
                    "compiled" in ast.unparse(d) or "njit" in ast.unparse(d) for d in child.decorator_list
                )
            own = child if isinstance(child, ast.stmt) else owner
            later = (runs or isinstance(node, ast.FunctionDef)) and not isinstance(node, ast.arguments)
            yield child, node, field, index, own, inside, loops, later
            yield from places(child, inside, loops, own, later and not isinstance(child, ast.arguments))


class Mutant:
    """A change of one node; `apply` gives the code of the changed module."""

    def __init__(self, room, tree, place, variant, number):
        self.room, self._tree, self._place, self._variant = room, tree, place, variant
        node, _, _, _, owner, self.function, self.compiled, self.runs = place
        self.line = node.lineno if hasattr(node, "lineno") else owner.lineno
        header = owner.body[0].lineno if getattr(owner, "body", None) else (owner.end_lineno or owner.lineno) + 1
        self.lines = range(owner.lineno, max(header, owner.lineno + 1))
        before, after = (
            ast.unparse(ast.fix_missing_locations(copy.deepcopy(getattr(one, "test", one)))) for one in (node, variant)
        )
        self.what = f"{before}  ->  {after}"
        self.key = f"{room}|{self.function}|{self.what}|{number}"

    def apply(self):
        """Return the code of the changed module, with the lines of the file."""
        node, parent, field, index, *_ = self._place
        new = ast.fix_missing_locations(ast.copy_location(self._variant, node))
        values = getattr(parent, field)
        if index is None:
            setattr(parent, field, new)
        else:
            values[index] = new
        try:
            return compile(self._tree, str(pathlib.Path(self.room).resolve()), "exec")
        finally:
            if index is None:
                setattr(parent, field, node)
            else:
                values[index] = node


def mutants_of(room):
    """Yield the mutants of a file; of compiled loops, with the constants that they use, where they are plain Python, else of all others."""
    text = pathlib.Path(room).read_text()
    tree, lines = ast.parse(text), text.splitlines()
    seen, looped = collections.Counter(), set()
    for node, *_, compiled, _ in places(tree):
        looped |= {node.id} if compiled and isinstance(node, ast.Name) else set()
    for place in places(tree):
        node, owner = place[0], place[4]
        if owner is None or "pragma: no cover" in lines[owner.lineno - 1]:
            continue
        for variant in variants(node):
            one = Mutant(room, tree, place, variant, 0)
            seen[one.key] += 1
            if seen[one.key] > 1:
                one.key = f"{one.key}{seen[one.key]}"
            constant = (
                isinstance(owner, ast.Assign) and not one.function and getattr(owner.targets[0], "id", "") in looped
            )
            if (one.compiled or constant) == PLAIN:  # a constant of compiled loops is in the cache with them
                yield one
