"""The page of charts: drawn from the tables of runs, the seeds of a setting as one curve."""

import pytest

from agents.learning import dashboard
from agents.learning.charts import STEP
from agents.learning.dashboard import _banded, curves_of
from ooco_gym.errors import UserError

CONFIG = {"title": "A page"}


def test_without_runs_it_says_what_to_name(tmp_path):
    with pytest.raises(UserError, match="needs runs=FOLDER"):
        dashboard.main({**CONFIG, "runs": None, "out": str(tmp_path)})
    assert not list(tmp_path.iterdir())


def test_seeds_of_a_setting_are_one_curve_with_a_band(tmp_path):
    for setting, seeds in (("slow", (1, 2)), ("fast", (3,))):
        for seed in seeds:
            folder = tmp_path / setting / f"seed_{seed}"
            folder.mkdir(parents=True)
            (folder / "policy.zip").touch()
            rows = [f"{step},{step / 1000 * seed},{'' if step % 2000 else 0.01 * seed}" for step in (1000, 2000, 3000)]
            (folder / "progress.csv").write_text("\n".join(
                ["time/total_timesteps,episode/violation_rate,validation/reward", *rows]))
    shown = dashboard.main({**CONFIG, "runs": [str(tmp_path / "slow"), str(tmp_path / "fast")], "out": str(tmp_path)})
    assert shown["shown"] == ["slow", "fast"]
    x, mean, low, high = _banded([curves_of(tmp_path / "slow" / f"seed_{seed}") for seed in (1, 2)], STEP,
                                 "episode/violation_rate")
    assert x.tolist() == [1000, 2000, 3000] and mean.tolist() == [1.5, 3.0, 4.5]
    assert low.tolist() == [1.0, 2.0, 3.0] and high.tolist() == [2.0, 4.0, 6.0]
    assert _banded([curves_of(tmp_path / "slow" / "seed_2")], STEP, "validation/reward")[0].tolist() == [2000]
    text = (tmp_path / dashboard.PAGE_FILE).read_text(encoding="utf-8")
    assert "Training episodes" in text and "Validation windows" in text and "Search over whole episodes" not in text
    with pytest.raises(UserError, match="has neither progress.csv nor generations.csv"):
        dashboard.main({**CONFIG, "runs": str(tmp_path / "nothing"), "out": str(tmp_path)})
