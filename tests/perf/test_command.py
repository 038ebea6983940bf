"""`ooco-gym perf`: figures, printed tables, and sentences for bad input."""

from __future__ import annotations

import json
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from ooco_gym.cli import main as cli
from ooco_gym.errors import UserError
from ooco_gym.perf import load_model
from ooco_gym.perf.command import main
from ooco_gym.resources import conf_root, load_yaml
from tests.perf.perf_chips import chip, measured_rows, write_tables


def config(out: str | None = None, **changes: Any) -> DictConfig:
    """The configuration as Hydra composes it: `conf/perf.yaml` with its groups filled in."""
    values = OmegaConf.load(conf_root() / "perf.yaml")
    assert isinstance(values, DictConfig)
    groups = {name: value for group in values.pop("defaults") if not isinstance(group, str)
              for name, value in group.items()}
    chosen = {group: choice if isinstance(choice := changes.pop(group, name), dict) else load_yaml(group, choice)
              for group, name in groups.items()}
    return OmegaConf.create({**chosen, **OmegaConf.to_container(values), "out": out, **changes})  # pyright: ignore


def test_figures_and_tables(capsys):
    figures = main(config())
    assert json.loads(json.dumps(figures)) == figures
    assert figures["schema"] == "ooco-gym/perf/3"
    assert 250 <= figures["saturation"]["bs_sat"] <= 350
    assert 200 <= figures["saturation"]["prefill_tokens"] <= 350
    printed = " ".join(capsys.readouterr().out.split())
    assert "Decode GEMMs saturate at a batch of 340" in printed
    assert "738,848 tokens" in printed


def test_names_instead_of_mappings_and_no_folder(capsys):
    cfg = config()
    cfg.chip, cfg.model, cfg.timing = "a100_40g_sxm", "llama_2_7b", "ooco_xllm"
    figures = main(cfg)
    assert figures["timing"] == "ooco_xllm"
    assert any(not row["fits"] for row in figures["decode"])
    assert "does not fit" in capsys.readouterr().out


@pytest.mark.parametrize(("changes", "message"), [
    ({"tp": 3}, "tp=3 does not divide"),
    ({"batches": "8"}, "batches='8' must be a list"),
    ({"throughput": {"prompts": 1}}, "throughput: unknown key 'prompts'"),
])
def test_bad_input_is_one_sentence_and_writes_nothing(tmp_path, changes, message):
    with pytest.raises(UserError) as error:
        main(config(str(tmp_path), **changes))
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_extended_timing_shows_its_operators_and_where_it_extrapolates(tmp_path, capsys):
    validity = {"max_batch": 128, "tp": [1]}
    figures = main(config(str(tmp_path), chip=chip(validity=validity), timing="extended"))
    assert {"norm", "rotary", "activation", "embedding", "lm_head", "sampler"} <= set(
        figures["decode"][0]["operator_shares"])
    assert figures["warnings"] == ["chip 'h200_kernels': its parameters were fitted up to a decode batch of 128 "
                                   "requests; this run reaches 512, where times are extrapolated"]
    printed = " ".join(capsys.readouterr().out.split())
    assert "Note: chip 'h200_kernels': its parameters were fitted up to" in printed


def test_tables_lie_beside_the_chip_that_names_them(tmp_path, monkeypatch, capsys):
    (tmp_path / "fit").mkdir()
    write_tables(tmp_path / "fit" / "tables.parquet", measured_rows(load_model("llama_3_1_8b")))
    (tmp_path / "fit" / "chip.yaml").write_text(json.dumps(chip(tables="tables.parquet")))
    monkeypatch.chdir(tmp_path)
    code = cli(["perf", "chip=fit/chip.yaml", "model=llama_3_1_8b", "timing=measured", "out=run"])
    assert code == 0
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["warnings"] == []
    capsys.readouterr()
