"""Rules about the source itself, which reviewers would otherwise have to repeat."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = Path(__file__).parent.parent
VECTORS = REPOSITORY / "tests" / "vectors"
ROOTS = ("proto", "broker", "nameserver", "client", "pipeline")
SOURCES = sorted(path for root in ROOTS for path in (REPOSITORY / root).rglob("*.py"))
CODE = [
    *SOURCES,
    *sorted((REPOSITORY / "tests").rglob("*.py")),
    *sorted((REPOSITORY / "bench").rglob("*.py")),
]
MODULE_LINES_MAX = 400
FUNCTION_LINES_MAX = 70
LOOPLESS = ("proto/cometmq/proto", "broker/cometmq/store")
LOOPS = {"anyio", "asyncio", "prometheus_client", "select", "selectors", "socket", "trio", "uvloop"}


class Import(NamedTuple):
    """One imported top-level name and where it stands."""

    path: Path
    line: int
    name: str


def relative(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


def imports(path: Path) -> list[Import]:
    found: list[Import] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [Import(path, node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.append(Import(path, node.lineno, node.module))
    return found


def packages() -> list[Path]:
    return [
        package
        for root in ROOTS
        for package in (REPOSITORY / root / "cometmq").iterdir()
        if package.is_dir()
    ]


def test_the_namespace_has_no_init() -> None:
    assert [
        root for root in ROOTS if (REPOSITORY / root / "cometmq" / "__init__.py").exists()
    ] == []


def test_a_source_root_holds_only_the_namespace() -> None:
    stray = [
        relative(path)
        for root in ROOTS
        for path in (REPOSITORY / root).iterdir()
        # Spark looks for the last two by name.
        if path.name not in {"cometmq", "README.md", "pyspark_cometmq", "pyspark_cometmq_store"}
    ]
    assert stray == []


def test_every_package_is_marked_typed() -> None:
    assert [
        relative(p) for p in packages() if p.name != "__pycache__" and not (p / "py.typed").exists()
    ] == []


def test_modules_have_one_subject_and_fit_in_four_hundred_lines() -> None:
    long = [
        f"{relative(path)}: {lines}"
        for path in SOURCES
        if (lines := len(path.read_text().splitlines())) > MODULE_LINES_MAX
    ]
    assert long == []


def test_functions_fit_on_a_screen() -> None:
    long = [
        f"{relative(path)}:{node.lineno} {node.name}"
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno + 1 > FUNCTION_LINES_MAX
    ]
    assert long == []


def test_protocol_and_store_import_no_loop_no_socket_and_no_metrics() -> None:
    loops = [
        f"{relative(found.path)}:{found.line} {found.name}"
        for path in SOURCES
        if relative(path).startswith(LOOPLESS)
        for found in imports(path)
        if found.name.split(".")[0] in LOOPS
    ]
    assert loops == []


def test_importing_the_protocol_loads_no_event_loop() -> None:
    script = f"import sys, cometmq.proto; print(sorted({LOOPS!r} & set(sys.modules)))"
    shown = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    assert shown.stdout.strip() == "[]"


def test_the_protocol_imports_nothing_else_of_ours() -> None:
    ours = [
        f"{relative(found.path)}:{found.line} {found.name}"
        for path in SOURCES
        if relative(path).startswith("proto/cometmq/proto")
        for found in imports(path)
        if found.name.startswith("cometmq.") and not found.name.startswith("cometmq.proto")
    ]
    assert ours == []


def test_every_public_name_is_documented() -> None:
    bare: list[str] = []
    for path in SOURCES:
        module = ast.parse(path.read_text())
        if ast.get_docstring(module) is None:
            bare.append(relative(path))
        scopes: list[ast.Module | ast.ClassDef] = [module]
        while scopes:
            scope = scopes.pop()
            for node in scope.body:
                if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    continue
                if node.name.startswith("_"):
                    continue
                if ast.get_docstring(node) is None and not _inherits_its_docstring(node):
                    bare.append(f"{relative(path)}:{node.lineno} {node.name}")
                if isinstance(node, ast.ClassDef):
                    scopes.append(node)
    assert bare == []


def _inherits_its_docstring(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    names = {ast.unparse(decorator).split(".")[-1] for decorator in node.decorator_list}
    return bool(names & {"override", "overload", "setter"})


def test_every_public_constant_of_the_protocol_is_documented() -> None:
    """A docstring under it counts, as does a comment beside it or above it or its paragraph."""
    bare = [
        f"{relative(path)}:{node.lineno} {name}"
        for path in SOURCES
        if relative(path).startswith("proto/cometmq/proto")
        for node, name in _undocumented_constants(path.read_text())
    ]
    assert bare == []


def _undocumented_constants(source: str) -> Iterator[tuple[ast.stmt, str]]:
    lines = source.splitlines()
    body = ast.parse(source).body
    for node, behind in zip_longest(body, body[1:]):
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign):
            targets = [node.target]
        else:
            continue
        if isinstance(behind, ast.Expr) and isinstance(behind.value, ast.Constant):
            continue
        above = node.lineno - 2
        while above > 0 and lines[above] and not lines[above].startswith(("#", '"')):
            above -= 1
        if lines[above].startswith("#") or "  # " in lines[node.lineno - 1]:
            continue
        for target in targets:
            if isinstance(target, ast.Name) and not target.id.startswith("_"):
                yield node, target.id


@pytest.mark.parametrize(
    ("source", "bare"),
    [
        ("A = 1", ["A"]),
        ('A = 1\n"""Why."""\nB: int = 2', ["B"]),
        ("# Why.\nA = 1\nB = 2\n\nC = 3", ["C"]),
        ("A = 1  # why\n_B = 2", []),
        ("__all__ = []", []),
    ],
)
def test_an_undocumented_constant_is_found(source: str, bare: list[str]) -> None:
    assert [name for _, name in _undocumented_constants(source)] == bare


def test_each_package_lists_its_public_names() -> None:
    bare: list[str] = []
    for package in packages():
        init = package / "__init__.py"
        if not init.exists():
            continue
        module = ast.parse(init.read_text())
        if (
            any(isinstance(node, ast.ImportFrom) for node in module.body)
            and "__all__" not in init.read_text()
        ):
            bare.append(relative(init))
    assert bare == []


@pytest.mark.parametrize(
    "word", ["manager", "service", "util", "common", "helper", "processor", "impl"]
)
def test_no_module_hides_behind_a_word_that_says_nothing(word: str) -> None:
    assert [relative(path) for path in SOURCES if word in path.stem.split("_")] == []


def test_nothing_is_raised_in_an_except_star() -> None:
    """Before 3.11.4, Python wraps the exception in a group, which is shown as a traceback."""
    raised = [
        f"{relative(path)}:{node.lineno}"
        for path in CODE
        for group in ast.walk(ast.parse(path.read_text()))
        if isinstance(group, ast.TryStar)
        for handler in group.handlers
        for node in ast.walk(handler)
        if isinstance(node, ast.Raise)
    ]
    assert raised == []


def test_no_ignore_without_a_code_and_a_reason() -> None:
    marker = re.compile(r"#\s*(type: ignore|pyright: ignore|noqa)(?P<rest>.*)")
    bare = [
        f"{relative(path)}:{number}"
        for path in CODE
        if path != Path(__file__)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if (match := marker.search(line))
        and not re.match(
            r"(\[[\w-]+(,\s*[\w-]+)*\]|: [A-Z]+\d+(, [A-Z]+\d+)*)\s+# \w+", match["rest"]
        )
    ]
    assert bare == []


def project_files() -> list[Path]:
    """The tracked files, or all files if this is an unpacked archive."""
    if not (REPOSITORY / ".git").exists():
        return [path for path in REPOSITORY.rglob("*") if ".venv" not in path.parts]
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=REPOSITORY, check=True, capture_output=True, text=True
    ).stdout.split("\0")
    return [REPOSITORY / name for name in tracked if name]


def test_nothing_refers_to_a_folder_outside_the_project() -> None:
    home = re.compile(r"(?<![\w/.~-])/(root|work|home/\w+|Users/\w+)/")
    upwards = re.compile(r"(?<![\w/.])(?:\.\./)+[\w.-]+")
    outside: list[str] = []
    for path in project_files():
        if not path.is_file() or VECTORS in path.parents:
            continue
        text = path.read_bytes().decode("utf-8", "replace")
        leaves = any(
            not (path.parent / found).resolve().is_relative_to(REPOSITORY)
            for found in upwards.findall(text)
        )
        if leaves or home.search(text):
            outside.append(relative(path))
    assert outside == []


def test_what_needs_spark_is_marked_so_that_it_is_run() -> None:
    """An unmarked test is skipped where Spark is missing, and not selected where it is there."""
    unmarked: list[str] = []
    for path in sorted((REPOSITORY / "tests" / "pipeline").rglob("test_*.py")):
        tree = ast.parse(path.read_text())
        marks = [each for each in tree.body if isinstance(each, ast.Assign)]
        if any(
            "pytestmark" in ast.unparse(each) and "spark" in ast.unparse(each) for each in marks
        ):
            continue
        for each in tree.body:
            decorators = getattr(each, "decorator_list", [])
            is_marked = any(ast.unparse(one) == "pytest.mark.spark" for one in decorators)
            if ".importorskip(" in ast.unparse(each) and not is_marked:
                unmarked.append(f"{relative(path)}:{each.lineno}")
    assert unmarked == []


def test_what_needs_spark_is_where_it_is_looked_for() -> None:
    """`make spark` collects only `tests/pipeline`, as collecting the rest keeps both cores busy."""
    marked = re.compile(r"^\s*(?:@|pytestmark = .*)pytest\.mark\.spark\b", re.MULTILINE)
    elsewhere = [
        relative(path)
        for path in (REPOSITORY / "tests").rglob("test_*.py")
        if REPOSITORY / "tests" / "pipeline" not in path.parents and marked.search(path.read_text())
    ]
    assert elsewhere == []


def test_types_are_checked_alike_with_and_without_spark() -> None:
    """Where Spark is not installed, as at first in CI, pyright knows it from `typings` alone."""
    spark = [
        each
        for path in CODE
        for each in imports(path)
        if each.name.split(".")[0] in ("pyspark", "py4j")
    ]
    unknown: list[str] = []
    for path, line, name in spark:
        stub = REPOSITORY / "typings" / name.replace(".", "/")
        if not (stub.with_suffix(".pyi").is_file() or (stub / "__init__.pyi").is_file()):
            unknown.append(f"{relative(path)}:{line} {name}")
    assert spark
    assert unknown == []
