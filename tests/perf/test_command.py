"""`ooco-gym perf`: figures, printed tables, plot, and sentences for bad input."""

from __future__ import annotations

import json
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from ooco_gym.errors import UserError
from ooco_gym.perf import Deployment
from ooco_gym.perf.command import main
from ooco_gym.perf.show import build_figure, summary_lines
from ooco_gym.perf.study import study
from ooco_gym.resources import conf_root, load_yaml


def config(out: str | None = None, **changes: Any) -> DictConfig:
    """The configuration as Hydra composes it: `conf/perf.yaml` with its groups filled in."""
    values = OmegaConf.load(conf_root() / "perf.yaml")
    assert isinstance(values, DictConfig)
    groups = {name: value for group in values.pop("defaults") if not isinstance(group, str)
              for name, value in group.items()}
    chosen = {group: load_yaml(group, changes.pop(group, name)) for group, name in groups.items()}
    return OmegaConf.create({**chosen, **OmegaConf.to_container(values), "out": out, **changes})  # pyright: ignore


def test_figures_tables_and_plot(tmp_path, capsys):
    figures = main(config(str(tmp_path)))
    assert json.loads(json.dumps(figures)) == figures
    assert figures["schema"] == "ooco-gym/perf/1"
    assert 250 <= figures["saturation"]["decode_gemm_batch"] <= 350
    assert 200 <= figures["saturation"]["prefill_tokens"] <= 350
    assert 2.7 <= figures["comparison"]["ratio"] <= 3.7
    assert figures["comparison"]["table_6_ratio"] == pytest.approx(2.99, abs=0.01)
    printed = " ".join(capsys.readouterr().out.split())
    assert "Decode GEMMs saturate at a batch of 340" in printed
    assert "738,848 tokens" in printed
    assert [path.name for path in tmp_path.iterdir()] == ["perf.html"]
    page = (tmp_path / "perf.html").read_text(encoding="utf-8")
    assert "bs_sat 340" in page
    assert '<script src="http' not in page


def test_names_instead_of_mappings_and_no_folder(capsys):
    cfg = config()
    cfg.chip, cfg.model, cfg.timing = "a100_40g_sxm", "llama_2_7b", "ooco_xllm"
    cfg.compare_chip = None
    figures = main(cfg)
    assert figures["timing"] == "ooco_xllm"
    assert figures["comparison"] is None
    assert any(not row["fits"] for row in figures["decode"])
    assert "no room" in capsys.readouterr().out


def test_a_comparison_that_does_not_fit_is_a_note_and_no_error(capsys):
    small = load_yaml("chip", "a40") | {"memory_bytes": 9e9}
    figures = main(config(chip="h200", model="llama_2_7b", compare_chip=small))
    assert figures["comparison"] is None
    assert "no comparison: model 'llama_2_7b' does not fit" in " ".join(capsys.readouterr().out.split())


def test_marks_of_the_plot_sit_where_saturation_is(capsys):
    marks = {mark.text: mark.x for mark in build_figure(main(config())).layout.annotations}
    assert marks["bs_sat 340"] == 340
    assert 10 ** marks["316 tokens"] == pytest.approx(316)  # Plotly places text on a logarithmic axis by logarithm


def test_every_cell_names_its_bottleneck():
    cfg = config()
    deployment = Deployment.from_config({"chip": "h100", "model": "mistral_7b"})
    figures = study(deployment, batches=[1, 400], contexts=[100], prompts=[10, 5000],
                    throughput={"prompt_tokens": 100, "output_tokens": 10, "batch": cfg.throughput.batch})
    assert [row["bottleneck"] for row in figures["decode"]] == ["memory bandwidth", "compute"]
    assert figures["prefill"][1]["bottleneck"] == "compute"
    assert len(summary_lines(figures)) == 4


@pytest.mark.parametrize(("changes", "message"), [
    ({"model": "qwen2_5_72b"}, "tp=4 would do"),
    ({"tp": 3}, "tp=3 does not divide"),
    ({"compare_chip": "h8000"}, "unknown chip 'h8000' (did you mean 'h800'?)"),
    ({"batches": "8"}, "batches must be a list of whole numbers"),
    ({"batches": [0]}, "batches must hold whole numbers of at least 1, got '0'"),
    ({"contexts": []}, "contexts must be a list of whole numbers"),
    ({"throughput": {"batch": 1.5}}, "throughput.batch must be a whole number"),
    ({"throughput": {"prompt_tokens": "many"}}, "throughput.prompt_tokens must be a number"),
    ({"throughput": {"prompts": 1}}, "unknown key 'throughput.prompts'"),
])
def test_bad_input_is_one_sentence_and_writes_nothing(tmp_path, changes, message):
    with pytest.raises(UserError) as error:
        main(config(str(tmp_path), **changes))
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())
