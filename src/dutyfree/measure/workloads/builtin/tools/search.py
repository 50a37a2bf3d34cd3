"""Finds where a name is defined, or used, in Python source: what an agent's code search does, on `ast` alone.

python3 search.py definitions|references NAME PATH...
"""

import ast
import sys
from pathlib import Path


def defines(node: ast.AST, name: str) -> bool:
    """Whether the node binds `name`: a function, a class, or an assignment."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return node.name == name
    return isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)


def refers(node: ast.AST, name: str) -> bool:
    """Whether the node reads `name`, as a variable, an attribute or an import."""
    if isinstance(node, ast.Name):
        return node.id == name and isinstance(node.ctx, ast.Load)
    if isinstance(node, ast.Attribute):
        return node.attr == name
    return isinstance(node, ast.alias) and node.name.split(".")[-1] == name


def main(words: list[str]) -> int:
    """Print `path:line: source` for each find; the exit code is grep's."""
    (kind, name), paths = words[:2], words[2:]
    wanted = {"definitions": defines, "references": refers}[kind]
    found = 0
    for path in sorted(file for each in paths for file in Path(each).rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        lines = source.splitlines()
        nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, (ast.stmt, ast.expr, ast.alias)))
        numbers = {node.lineno for node in nodes if wanted(node, name)}
        for number in sorted(numbers):
            print(f"{path}:{number}: {lines[number - 1].strip()}")
        found += len(numbers)
    print(f"{found} found")
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
