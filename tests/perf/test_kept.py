"""What was worked out from a table is kept by the table itself, the newest so many."""

from __future__ import annotations

from ooco_gym.perf import CostTable, Deployment, cost_table, load_chip, load_model
from ooco_gym.perf.table import kept_by_table


def table_of(chip: str) -> CostTable:
    return cost_table(Deployment(load_chip(chip), load_model("qwen2_5_7b"), 1), 4, 16)


def test_the_newest_results_are_kept_by_table_and_values() -> None:
    asked = []

    @kept_by_table(2)
    def work(table: CostTable, batch: int, part: int = 0) -> list[int]:
        asked.append((table.kv_blocks, batch, part))
        return [batch]

    one, other = table_of("h800"), table_of("a100_40g_sxm")
    first = work(one, 3)
    assert work(one, 3) is first and len(asked) == 1
    assert work(other, 3) is not first, "another table"
    assert work(one, 3) is first, "the one that was asked for last is not the first to go"
    assert work(one, 3, part=1) is not first and work(one, 3) is first
    assert work(other, 3) == [3] and len(asked) == 4, "the oldest went"
