"""How `aggregate` parses the list of expressions that it computes."""

from __future__ import annotations

import pytest

from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.jobs import aggregations


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("count, sum(a)", ["count", "sum_a"]),
        ("max(if(a = ')', 1, 2)), count", ["max_if_a_1_2_", "count"]),
        ("sum(`a)b`), count", ["sum__a_b_", "count"]),
        ("sum(`a'b`), sum(`c'd`)", ["sum__a_b_", "sum__c_d_"]),
        ("max(distinct)", ["max_distinct"]),
        ("max(if(tag = '(distinct ', 1, 0))", ["max_if_tag_distinct_1_0_"]),
    ],
)
def test_commas_part_them_but_for_those_in_parentheses_and_in_quotes(
    text: str, names: list[str]
) -> None:
    assert aggregations.names(text) == names


def test_what_spark_does_not_count_in_a_stream_is_refused_with_what_does() -> None:
    with pytest.raises(OptionError, match=r"'count\(distinct a\)'.* no DISTINCT .* --key"):
        aggregations.names("count, count(distinct a)")
