"""Every public name of the packages is documented, with an example that compiles."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from typing import Any

import pytest

import cometmq.client
import cometmq.testing
from cometmq.client import ClientError

PACKAGES = ("cometmq.client", "cometmq.testing")
PUBLIC = {
    name: getattr(package, name)
    for package in (cometmq.client, cometmq.testing)
    for name in package.__all__
}
CLASSES = {name: each for name, each in PUBLIC.items() if not issubclass(each, ClientError)}
FACTS = ("BrokerListed", "BrokerRoute", "MissingMessagesError", "QueueStatus", "TopicListed")
"""Classes that users only read. The call that returns or raises them has the example."""

METHODS = {
    f"{name}.{verb}": member
    for name, each in CLASSES.items()
    for verb, member in inspect.getmembers(each, inspect.isfunction)
    if not verb.startswith("_")
    and member.__module__.startswith(PACKAGES)
    # Methods that only the package's own modules call.
    and (name, verb)
    not in {("Message", "fail"), ("Message", "taken"), ("SyncClient", "background")}
    and verb not in {"copy_from", "unwrapped", "forget_the_parents"}
    and verb not in {"tell_entered", "tell_left", "end_block"}
}


def example_of(documented: Any) -> str:
    text = inspect.getdoc(documented) or ""
    found = re.search(r"::\n\n((?:    .*\n|\n)+(?:    .*)?|    .*\Z)", text)
    return textwrap.dedent(found[1]).strip() if found else ""


@pytest.mark.parametrize("name", sorted({*CLASSES} - {*FACTS}))
def test_a_class_has_an_example(name: str) -> None:
    compile_in_async(example_of(CLASSES[name]))


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_method_has_an_example_that_calls_it(name: str) -> None:
    example = example_of(METHODS[name])
    assert name.rpartition(".")[2] in example
    compile_in_async(example)


def compile_in_async(example: str) -> None:
    assert example
    body = textwrap.indent(example, "    ")
    ast.parse(f"async def example():\n{body}\n")


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_a_name_is_said_by_its_module_and_its_docstring(name: str) -> None:
    assert PUBLIC[name].__module__.startswith(PACKAGES)
    assert inspect.getdoc(PUBLIC[name])


def test_every_error_says_whose_it_is_and_whether_a_retry_can_help() -> None:
    errors = [each for each in PUBLIC.values() if issubclass(each, ClientError)]
    assert len(errors) == len(PUBLIC) - len(CLASSES) > 10
    for each in errors:
        assert each.whose in {"ours", "theirs", "network"}
        assert isinstance(each.can_retry, bool)
        assert each.__name__ in (inspect.getdoc(inspect.getmodule(each)) or "")
