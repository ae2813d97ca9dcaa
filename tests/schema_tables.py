"""The tables of docs/run-folder.md, made of the schema: a row for each field, with its type and its docstring."""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import re
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect as types

PAGE = Path(__file__).parents[1] / "docs" / "run-folder.md"
BLOCK = re.compile(r"(<!-- fields of (\w+)\.(\w+) -->\n).*?(<!-- end of fields -->)", re.DOTALL)
COMMAND = "scripts/schema-tables"
WORDS: dict[type[types.Type], str] = {
    types.IntType: "whole number",
    types.FloatType: "number",
    types.StrType: "text",
    types.BoolType: "true or false",
    types.NoneType: "null",
}


def with_tables(text: str) -> str:
    """Return a page with every table made anew."""
    return BLOCK.sub(lambda match: f"{match[1]}\n{table(match[2], match[3])}\n\n{match[4]}", text)


def described(text: str) -> set[str]:
    """Return the types that a page has a table of."""
    return {f"{module}.{name}" for _, module, name, _ in BLOCK.findall(text)}


def schema_types() -> set[str]:
    """Return every type with fields that the schema defines for a file."""
    folder = Path(inspect.getfile(importlib.import_module("lockstep.train.schema"))).parent
    modules = sorted(path.stem for path in folder.glob("*_json*.py"))
    names: set[str] = set()
    for module in modules:
        made = vars(importlib.import_module(f"lockstep.train.schema.{module}"))
        own = [value for value in made.values() if inspect.isclass(value) and issubclass(value, msgspec.Struct)]
        names |= {
            f"{module}.{value.__name__}"
            for value in own
            if value.__module__.endswith(f".{module}") and value.__struct_fields__
        }
    return names


def table(module: str, name: str) -> str:
    """Return the table of one type."""
    kind = getattr(importlib.import_module(f"lockstep.train.schema.{module}"), name)
    info, documented = types.type_info(kind), _docstrings(kind)
    assert isinstance(info, types.StructType)
    rows = ["| field | type | what it is |", "|---|---|---|"]
    if info.tag_field is not None:
        rows.append(f"| `{info.tag_field}` | text | `{info.tag}` |")
    rows += [f"| `{one.encode_name}` | {_words(one)} | {documented[one.name]} |" for one in info.fields]
    return "\n".join(rows)


def _words(field: types.Field) -> str:
    often = "" if field.required or field.default is not None else ", or absent"
    nullable = isinstance(field.type, types.UnionType) and bool(often)  # absent stands for null there
    return _type(field.type, leave_null_out=nullable) + often


def _type(kind: Any, *, leave_null_out: bool = False) -> str:
    if isinstance(kind, types.UnionType):
        inner = [one for one in kind.types if not (leave_null_out and isinstance(one, types.NoneType))]
        return " or ".join(_type(one) for one in inner)
    if isinstance(kind, types.LiteralType):
        return "text"
    if isinstance(kind, types.VarTupleType):
        return f"list of {_plural(kind.item_type)}"
    if isinstance(kind, types.TupleType):
        return f"list of {len(kind.item_types)}"
    if isinstance(kind, types.DictType):
        return f"object of {_plural(kind.value_type)}"
    if isinstance(kind, types.StructType) and kind.array_like:
        return f"list of {len(kind.fields)}"
    return WORDS.get(type(kind), "object")


def _plural(kind: Any) -> str:
    """Name a type of which there are several: `numbers or null`, `lists of 3`."""
    one, of, rest = _type(kind).partition(" of ")
    first, alternative, other = one.partition(" or ")
    return f"{first}{'' if first == 'text' else 's'}{alternative}{other}{of}{rest}"


def _docstrings(kind: type) -> dict[str, str]:
    """Return the docstring of every field, also of those that are inherited."""
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not base.__module__.startswith("lockstep."):
            continue
        tree = ast.parse(inspect.getsource(importlib.import_module(base.__module__)))
        body = next(node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == base.__name__)
        for field, text in itertools.pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                texts[ast.unparse(field.target)] = " ".join(str(text.value.value).split()).replace("|", "\\|")
    return texts


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
