"""`ooco-gym data`: the catalogue, describing and importing files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ooco_gym.cli import main
from ooco_gym.errors import UserError
from ooco_gym.workload import Trace, generate, list_formats, read_trace, write_trace
from ooco_gym.workload.catalogue import list_datasets, load_dataset
from ooco_gym.workload.describe import describe, dispersion
from tests.workload.files import put


def data(folder: Path, *words: str) -> dict[str, Any]:
    assert main(["data", *words, f"out={folder / 'out'}"]) == 0
    return json.loads((folder / "out" / "summary.json").read_text())


@pytest.mark.parametrize("name", list_datasets())
def test_the_catalogue_is_sound(name: str) -> None:
    item = load_dataset(name)
    assert item.licence and item.description.endswith(".") and item.publisher
    assert item.format in ("auto", *list_formats())
    assert item.note or item.address
    if item.address:
        assert item.address.startswith("https://") and item.file
    assert item.sha256 is None or re.fullmatch("[0-9a-f]{64}", item.sha256)
    assert item.sha256 is not None or item.size_bytes is None


def test_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("OOCO_GYM_DATA", str(tmp_path))
    (tmp_path / "traces").mkdir()
    write_trace(generate("ooc", duration_s=60, seed=1), tmp_path / "traces" / "azure_conv_2023.parquet")
    found = data(tmp_path)["datasets"]
    assert set(found) == set(list_datasets()) >= {"azure_conv_2023", "azure_code_2024", "burstgpt", "servegen"}
    assert found["azure_conv_2023"]["here"].endswith("azure_conv_2023.parquet") and found["burstgpt"]["here"] is None
    one = data(tmp_path, "list", "azure_conv_2023")["datasets"]
    assert one == {"azure_conv_2023": found["azure_conv_2023"]}
    assert one["azure_conv_2023"]["sha256"] in capsys.readouterr().out
    assert data(tmp_path, "describe", "azure_conv_2023")["requests"] > 100


@pytest.mark.parametrize(("words", "said"), [
    (["descibe", "x"], "unknown action of ooco-gym data 'descibe' (did you mean 'describe'?)"),
    (["describe"], "ooco-gym data describe needs a file"),
    (["describe", "azure_conv_202"], "did you mean 'azure_conv_202"),
    (["describe", "no.csv"], "trace file 'no.csv' does not exist"),
    (["describe", "azure_code_2024"], "put it at"),
    (["describe", "servegen"], "clone the repository"),
    (["list", "mooncake"], "unknown dataset 'mooncake'"),
])
def test_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
                  words: list[str], said: str) -> None:
    monkeypatch.setenv("OOCO_GYM_DATA", str(tmp_path))
    assert main(["data", *words, f"out={tmp_path / 'out'}"]) == 2
    message = capsys.readouterr().err
    assert said in message and message.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_figures_of_known_processes() -> None:
    rng = np.random.default_rng(1)
    poisson = np.sort(rng.uniform(0, 20_000, 100_000))
    prompt = rng.integers(1, 1000, 100_000)
    figures = describe(Trace(poisson, prompt, 2 * prompt, name="p"))  # type: ignore[arg-type]
    assert figures["rate_per_s"] == pytest.approx(5.0, rel=0.01)
    assert figures["gaps"]["cv"] == pytest.approx(1.0, abs=0.02)
    assert all(value == pytest.approx(1.0, abs=0.4) for value in figures["dispersion"].values())
    assert figures["peak_over_mean"]["3600"] == pytest.approx(1.0, abs=0.03)
    assert figures["length_rank_correlation"] == pytest.approx(1.0)
    assert figures["prompt_tokens"]["p50"] == np.quantile(prompt, 0.5) == figures["output_tokens"]["p50"] / 2
    even = np.arange(10_000) / 4
    assert dispersion(even, 10.0) == pytest.approx(0.0, abs=1e-9)
    batches = np.repeat(np.arange(2000) * 3.0, 12)                  # twelve at once every 3 s: none or twelve a second
    assert dispersion(batches, 1.0) == pytest.approx(12 * (1 - 1 / 3), rel=0.01)
    assert dispersion(even[:100], 300.0) is None
    json.dumps(figures, allow_nan=False)


@pytest.mark.parametrize("trace", [
    Trace([0.0], [1], [1]), Trace([5.0, 5.0], [1, 2], [1, 1]),  # type: ignore[arg-type]
    Trace([0.0, 1.0], [1, 2], [1, 1], session=[-1, 3], prefix_hashes=([0, 2, 4], [1, 2, 1, 3]))])  # type: ignore[arg-type]
def test_describe_says_nothing_where_there_is_nothing_to_say(trace: Trace) -> None:
    figures = describe(trace)
    assert set(figures["dispersion"].values()) == {None}
    if trace.prefix_hashes is not None:
        assert figures["sharing_ratio"] == 2 / 3 and figures["sessions"] == 1


COLUMNS = ["columns.arrival_s=when", "columns.prompt_tokens=in", "columns.output_tokens=out", "columns.class=kind"]


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "jsonl", "parquet"])
def test_import_maps_columns_and_units(tmp_path: Path, kind: str) -> None:
    path = put(tmp_path, [{"when": 2000.0, "in": 10, "out": 5, "kind": "offline"},
                          {"when": 1500.5, "in": 20, "out": 0, "kind": "online"},
                          {"when": 500.0, "in": 30, "out": 7, "kind": "online"}], kind)
    summary = data(tmp_path, "import", str(path), *COLUMNS, "time_unit=ms")
    assert summary["to"] == str(tmp_path / "out" / "t.parquet")
    trace = read_trace(summary["to"])
    assert trace.arrival_s.tolist() == [0.5, 2.0]
    assert trace.prompt_tokens.tolist() == [30, 10] and trace.online.tolist() == [True, False]
    assert any("dropped 1 of 3" in note for note in summary["notes"])
    assert any("sorted by time" in note for note in summary["notes"])


def test_import_of_known_formats_to_other_endings(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44\n"
                    "2023-11-16 18:15:50.68,396,109\n")
    data(tmp_path, "import", str(path), f"to={tmp_path / 'a' / 'b.csv'}")
    assert read_trace(tmp_path / "a" / "b.csv").arrival_s.tolist() == [0.0, 4.0]


@pytest.mark.parametrize(("times", "unit", "arrivals", "note"), [
    (["1700000000.5", "1700000002"], "s", [0.0, 1.5], "1970"),
    (["1700000000500", "1700000002000"], "ms", [0.0, 1.5], "1970"),
    (["2024-05-12 00:00:01", "2024-05-12 00:00:03.5"], "auto", [0.0, 2.5], "first request"),
    (["2024-05-12T00:00:01Z", "2024-05-12T00:00:03Z"], "date", [0.0, 2.0], "first request"),
    (["1000000", "2000000"], "us", [1.0, 2.0], ""),
])
def test_times(tmp_path: Path, times: list[str], unit: str, arrivals: list[float], note: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text("t,prompt_tokens,output_tokens\n" + "".join(f"{time},1,1\n" for time in times))
    trace = read_trace(path, columns={"arrival_s": "t"}, time_unit=unit)
    assert trace.arrival_s.tolist() == pytest.approx(arrivals)
    assert note in " ".join(trace.notes)


@pytest.mark.parametrize(("text", "columns", "unit", "said"), [
    ("t,p,o\n1700000000000,1,1\n", {"arrival_s": "t"}, "s", "line 2, field 't': found '1700000000000', expected.*=ms"),
    ("t,p,o\n1,1,1\n-1,1,1\n", {"arrival_s": "t"}, "ms", "line 3, field 't': found '-1'"),
    ("t,p,o\n5,1,1\n", {"arrival_s": "t"}, "date", "line 2, field 't'.*expected a date"),
    ("t,p,o\n5,1,1\n", {"arrival_s": "T"}, "s", "has no column 'T'.*found: t, p, o"),
    ("t,p,o\n5,1,1\n", {"arrival": "t"}, "s", "unknown column 'arrival'.*'arrival_s'"),
    ("t,p,o\n5,1,1\n", {"arrival_s": "t"}, "sec", "unknown time_unit 'sec'"),
])
def test_refusals_name_the_place(tmp_path: Path, text: str, columns: dict[str, str], unit: str, said: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=said):
        read_trace(path, columns={"prompt_tokens": "p", "output_tokens": "o", **columns}, time_unit=unit)


def test_a_format_and_columns_exclude_each_other(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("t,p,o\n5,1,1\n")
    with pytest.raises(UserError, match="exclude each other"):
        read_trace(tmp_path / "x.csv", format="azure", columns={"arrival_s": "t"})
    with pytest.raises(UserError, match="no column 'prompt_tokens'.*which they are: columns.prompt_tokens=NAME"):
        read_trace(tmp_path / "x.csv", columns={"arrival_s": "t"})
