from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given, strategies as st
from tests.broker.filter.outcomes import CORPUS, HAND_PICKED, outcomes

from cometmq.broker.filter.errors import FilterSyntaxError
from cometmq.broker.filter.sql import SqlFilter, compile_sql
from cometmq.proto.host import pack_host
from cometmq.proto.message import read_message
from cometmq.proto.properties import encode_properties
from cometmq.proto.record import encode_record


def compiled(expression: str, depth_max: int = 100) -> SqlFilter:
    return compile_sql(expression, depth_max)


def refusal(expression: str, depth_max: int = 100) -> str:
    with pytest.raises(FilterSyntaxError) as refused:
        compiled(expression, depth_max)
    return str(refused.value)


def test_expressions_are_refused_and_find_what_apaches_classes_do() -> None:
    lines = CORPUS.read_text("utf-8").splitlines()
    wrong: list[tuple[str, str, str]] = []
    for line in lines:
        expression, answer, maps = json.loads(line)
        if (ours := outcomes(expression, maps)) != answer:
            wrong.append((expression, answer, ours))
    assert len(lines) >= 2000 + len(HAND_PICKED)
    assert wrong == []


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("a between and", "at line 1, column 11: 'and' is not allowed there"),
        ("a = 1\nAND b = #", "at line 2, column 9: '#' is not allowed there"),
        ("a >", "something is missing at its end"),
        ("a = 'x", 'column 5: "\'" is not allowed there'),
        ("a = NULL", "NULL cannot be compared: write IS NULL"),
        ("a > 'x'", "'x' cannot be compared: only numbers have an order"),
        ("a BETWEEN 5 AND 2", "the first is greater than the second"),
        ("5", "5 is not a condition"),
        ("(a = 1) IN ('x')", "IN looks for a property in strings, a condition is none"),
        ("TRUE = 5", "True cannot be compared with 5"),
        ("a = 9223372036854775808", "is greater than 9223372036854775807"),
        ("a = 0.0", "0.0 is not between 4.9E-324 and"),
    ],
)
def test_a_refusal_says_what_is_wrong_and_where(expression: str, problem: str) -> None:
    assert problem in refusal(expression)
    assert problem in refusal(expression), "also when it is remembered"


def test_an_expression_over_its_depth_is_refused_by_the_setting() -> None:
    deep = "NOT " * 100 + "a"
    assert "filter_depth_max allows 100" in refusal(deep)
    # The setting may change while the compiled expression is cached.
    compiled(deep, depth_max=200)
    assert "filter_depth_max allows 100" in refusal(deep)


@pytest.mark.parametrize("join", [" AND ", " OR "])
def test_a_long_row_is_not_a_deep_one(join: str) -> None:
    text = join.join(f"a <> {number}" for number in range(1, 600))
    assert compiled(text, depth_max=5).takes({"a": "0"})


@pytest.mark.parametrize(
    "piece", ["(", "NOT ", "-", "a = (", "a BETWEEN ", "a IN (", "'", "--", "/*"]
)
def test_no_expression_within_the_length_overflows_anything(piece: str) -> None:
    assert refusal(piece * (8192 // len(piece)))
    refusal_or_not = outcomes(piece * 500 + "a" + ")" * 500, [])
    assert refusal_or_not in ("!", "")


def test_a_chain_of_comparisons_is_deep() -> None:
    assert "filter_depth_max" in refusal(" = ".join(["a"] * 200))


def test_keywords_may_have_any_case_and_names_may_not() -> None:
    found = compiled("a iS nOt NuLl aNd tAgS = 'x'")
    assert found.takes({"a": "1", "tAgS": "x"})
    assert not found.takes({"a": "1", "TAGS": "x"})


def test_a_value_that_is_no_number_does_not_match_whatever_else_is_asked() -> None:
    found = compiled("a > 5 OR b = 'x'")
    assert found.takes({"a": "1", "b": "x"})
    assert not found.takes({"a": "one", "b": "x"})


@pytest.mark.parametrize("names", [1, 4, 5, 9])
def test_properties_are_taken_from_the_record(names: int) -> None:
    found = compiled(" AND ".join(f"n{n} = 'wert ü {n}'" for n in range(names)))
    host = pack_host("127.0.0.1", 1)

    def message(properties: dict[str, str]) -> bytes:
        return encode_record(
            topic=b"T",
            body=b"n0\x01wert",
            properties=encode_properties(properties),
            queue_id=0,
            queue_offset=0,
            physical_offset=0,
            born_timestamp=0,
            born_host=host,
            store_timestamp=0,
            store_host=host,
        )

    wanted = {f"n{n}": f"wert ü {n}" for n in range(names)}
    assert found.matches(read_message(message({**wanted, "other": "x"})))
    assert not found.matches(read_message(message({**wanted, "n0": "wert"})))
    assert not found.matches(read_message(message({})))


@given(st.text(alphabet=st.sampled_from("ab'5.eL()=<>+-,/* \nNOTANDIS#ü"), max_size=40))
def test_any_text_is_compiled_or_refused(text: str) -> None:
    assert outcomes(text, [{"a": "5", "b": "x"}]) in set("!TFNE")


def test_lark_is_not_imported_before_it_is_needed() -> None:
    program = "import sys, cometmq.broker.daemon; sys.exit('lark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
