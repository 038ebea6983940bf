"""The files that commands keep and read back, each made once in a small size, and how it is read.

`TARGETS` has them by name. What a target's `read` gives must be the same figures whatever happened to a file of ours:
as it was kept, or made anew; or the file is refused by a `UserError`. A file that a person may write (`text`) is
believed where it can be read: there other figures are no fault.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import io
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ooco_gym.errors import UserError
from ooco_gym.resources import conf_root, load_yaml

TESTS = Path(__file__).resolve().parents[1]
SHORT = ("workload=azure_conv", "rate_scale=0.05", "duration_s=130", "warmup_s=5", "offline.rate=1")
ANSWER = {"rate": 1.25, "arrivals": 65, "name": "ooco", "curve": [1.0, None, 3.5]}
OF_TIME = ("wall_s", "content_sha256", "cpu_s", "files_sha256", "remarks")


@dataclass(frozen=True)
class Target:
    """What a command keeps.

    Attributes:
        said: what it is, in the table.
        make: makes its files in a folder.
        read: reads them back, as JSON-able figures.
        text: patterns of the files that a person may write.
        left: patterns of those that no command reads back.
        slow: whether it takes more than a fraction of a second to read.
    """

    said: str
    make: Callable[[Path], Any]
    read: Callable[[Path], Any]
    text: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    slow: bool = False

    def is_text(self, name: str) -> bool:
        """Whether a person may write this file."""
        return any(fnmatch.fnmatch(name, pattern) for pattern in self.text)

    def files(self, folder: Path) -> list[str]:
        """The files that are read back, relative to the folder."""
        found = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()]
        return [name for name in found if not any(fnmatch.fnmatch(name, pattern) for pattern in self.left)]


def command(*words: str) -> None:
    """Runs the command line in this process.

    Raises:
        UserError: it ended with exit code 2, one sentence and nothing else on stderr.
        AssertionError: it ended otherwise, but for well.
    """
    from ooco_gym.cli import main

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(list(words))
    lines = [line for line in err.getvalue().splitlines() if line.strip()]
    assert not any("Traceback" in line for line in lines), lines[-1]
    if code == 0:
        return
    errors = [line for line in lines if line.startswith("error: ")]
    assert code == 2 and len(errors) >= 1, f"exit code {code}: {lines[-1:]}"
    raise UserError(errors[0].removeprefix("error: "))


def plain(value: Any) -> Any:
    """Figures as JSON has them; of arrays a digest."""
    if isinstance(value, np.ndarray):
        return [str(value.dtype), list(value.shape), hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items() if key not in OF_TIME}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    known = value is None or isinstance(value, (str, int, float, bool))
    return value if known and value == value else str(value)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# --- Caches ---------------------------------------------------------------------------------------------------------
def make_store(folder: Path) -> None:
    from experiments.common.store import Store

    for key in ("ab12", "cd34"):
        Store(folder / "runs").put(key, ANSWER)


def read_store(folder: Path) -> Any:
    from experiments.common.store import Store

    kept, found = Store(folder / "runs"), []
    for key in ("ab12", "cd34"):
        answer = kept.get(key)
        if answer is None:  # as `Jobs` does
            answer = ANSWER
            kept.put(key, answer)
        found.append(answer)
    return found


PEAK = {"workload": "mine", "cluster": "pair_7b", "tpot_from": "first_token", "ttft_s": 2.0, "tpot_s": 0.05,
        "tpot_min_tokens": 16.0}
FOUND = {"factor": 0.25, "floor": 0.001, "violation_rate": 0.004, "rate_per_s": 1.5, "seeds": [1, 2]}


def make_peaks(folder: Path) -> None:
    from ooco_gym.peak import FILE_NAME, store_entry

    for conditions, factor in (("protocol", 0.25), ("0123456789", 0.5)):
        store_entry({**PEAK, **FOUND, "factor": factor, "conditions": conditions}, folder / FILE_NAME,
                    {**PEAK, "conditions": conditions})


def read_peaks(folder: Path) -> Any:
    from experiments.common.peaks import _keep
    from ooco_gym.peak import stored_entry

    found = []
    for conditions, factor in (("protocol", 0.25), ("0123456789", 0.5)):
        entry = stored_entry(PEAK, conditions)
        if entry is None or entry["conditions"] != conditions:  # as `peak_entry` does
            entry = {**PEAK, **FOUND, "factor": factor, "conditions": conditions}
            _keep(entry, {**PEAK, "conditions": conditions})
        found.append(entry)
    return found


def compiled(folder: Path) -> Any:
    from ooco_gym.compile.source_cache import KeyedFiles

    return KeyedFiles(folder / "ooco_gym-rule-0123", "ooco_gym-rule-", "rule-10.py311")


CODE = {("int64",): b"machine code of one" * 40, ("float64",): b"machine code of another" * 40}


def make_compiled(folder: Path) -> None:
    for key, code in CODE.items():
        compiled(folder).save(key, code)


def read_compiled(folder: Path) -> Any:
    files, found = compiled(folder), []
    for key, code in CODE.items():
        data = files.load(key)
        if data is None:  # as numba does
            files.save(key, code)
            data = code
        found.append(hashlib.sha256(data).hexdigest())
    return found


# --- Folders of runs --------------------------------------------------------------------------------------------------
def make_run(folder: Path) -> None:
    command("simulate", "policy=base_pd", *SHORT, f"out={folder / 'run'}")


def read_run(folder: Path) -> Any:
    command("report", f"runs=[{folder / 'run'}]", f"out={folder / 'page'}")
    return digest(folder / "page" / "report.html")


def make_sweep(folder: Path) -> None:
    command("simulate", "-m", "seed=1,2", "policy=base_pd", *SHORT, f"out={folder / 'sweep'}")


def read_sweep(folder: Path) -> Any:
    make_sweep(folder)
    return [plain(json.loads((folder / "sweep" / f"seed={seed}" / "summary.json").read_text())) for seed in (1, 2)]


def make_played(folder: Path) -> None:
    from agents.evaluation.kept import PLAYED_FILE, Kept

    for key in ("one", "two", "three"):
        Kept(folder / PLAYED_FILE).put(key, [{"reward": 1.5, "window": 3, "summary": ANSWER}])


def read_played(folder: Path) -> Any:
    from agents.evaluation.kept import PLAYED_FILE, Kept

    kept, found = Kept(folder / PLAYED_FILE), []
    for key in ("one", "two", "three"):
        fresh = [{"reward": 1.5, "window": 3, "summary": ANSWER}]
        found.append(kept.found[key] if key in kept.found else kept.put(key, fresh))
    return found


# --- What is learned and searched -------------------------------------------------------------------------------------
def of_tests(folder: str) -> None:
    """Lets modules of another folder of tests be imported."""
    if str(TESTS / folder) not in sys.path:
        sys.path.insert(0, str(TESTS / folder))


def make_training(folder: Path) -> None:
    of_tests("agents")
    from gating_double import train_config  # pyright: ignore[reportMissingImports]

    from agents.learning.train import main
    from ooco_gym.files import write_sealed

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        write_sealed(folder / "run" / "summary.json", main(train_config(folder / "run", total_timesteps=150)))


def read_policy(folder: Path) -> Any:
    of_tests("agents")
    from agents.evaluation.players import environment_of
    from agents.learning.runs import load_run

    run = load_run(folder / "run")
    return [plain(run.decide_batch(*observed(3, 8, 4, 10, 2))), plain(environment_of(folder / "run")),
            plain(list(run.decisions))]


def read_training(folder: Path) -> Any:
    of_tests("agents")
    from agents.learning.runs import load_run
    from agents.learning.train import main

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        summary = main({"resume": str(folder / "run"), "total_timesteps": 225})
    run = load_run(folder / "run")
    return [summary["timesteps"], summary["best"] and summary["best"]["reward"],
            plain(run.decide_batch(*observed(3, 8, 4, 10, 2)))]


def observed(cluster: int, slots: int, features: int, actions: int, kinds: int) -> tuple[np.ndarray, ...]:
    """Observations of 32 decisions, whatever they mean."""
    random = np.random.default_rng(7)
    mask = np.ones((32, actions), np.int8)
    mask[:, 3:] = random.random((32, actions - 3)) < 0.7
    return (random.random((32, cluster), np.float32), random.random((32, slots, features), np.float32), mask,
            np.eye(kinds, dtype=np.float32)[random.integers(kinds, size=32)])


def make_bundle(folder: Path) -> None:
    import ooco_gym.zoo

    shutil.copytree(ooco_gym.zoo.folder("gating-ppo-v1"), folder / "bundle")


def read_bundle(folder: Path) -> Any:
    from ooco_gym.zoo import folder as folder_of
    from ooco_gym.zoo import load_policy

    whole = json.loads((folder_of("gating-ppo-v1") / "manifest.json").read_text())["inputs"]
    shapes = {key: one["shape"] for key, one in whole.items()}
    slots, features = shapes["candidates"]
    parts = observed(shapes["cluster"][-1], slots, features, shapes["action_mask"][0], shapes["decision"][0])
    policy = load_policy(folder / "bundle")
    return [plain(policy.decide_unchecked(*parts)), plain(policy.card)]


def make_weights(folder: Path) -> None:
    from ooco_gym.policy import get_policy
    from ooco_gym.policy.weights import write_weights

    layout = get_policy("learned_deadline").layout
    assert layout is not None
    write_weights(folder / "weights.npz", layout, 0.01 * np.arange(layout.size))
    (folder / "policy.yaml").write_text("name: learned_deadline\nweights: weights.npz\n")


def read_weights(folder: Path) -> Any:
    from ooco_gym.policy import get_policy
    from ooco_gym.policy.weights import read_weights

    policy = get_policy(str(folder / "policy.yaml"))
    assert policy.layout is not None or policy.name != "learned_deadline"
    if policy.layout is None or not policy.values.get("weights"):
        return [policy.name]
    return [policy.name, read_weights(str(policy.values["weights"]), policy.layout).tolist()]


def search_of(folder: Path) -> dict[str, Any]:
    own = {**load_yaml("env", "preemption"), "window_s": 20.0, "warmup_s": 5.0}
    return {**load_yaml("", "tune"), "env": own, "trials": 3, "windows": 2, "window_s": 20.0, "warmup_s": 5.0,
            "validation": {"windows": 2, "finalists": 2}, "params": ["interrupt", "slack_factor"],
            "out": str(folder / "search")}


def make_search(folder: Path) -> None:
    from agents.search import tune

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        tune.main(search_of(folder))


def read_search(folder: Path) -> Any:
    from agents.search import tune

    with tune._stored(search_of(folder)):
        if not tune._Search(search_of(folder)).done():  # it begins anew
            make_search(folder)
        search = tune._Search(search_of(folder))
        found = [[plain(trial.params), plain(dict(trial.user_attrs))] for trial in search.done()]
    tuned = tune.read_tuned(folder / "search" / "policy.yaml")
    return [*found, plain(tuned)]


def make_tree(folder: Path) -> None:
    from ooco_gym.files import write_sealed

    write_sealed(folder / "rule" / "tree.json", {
        "schema": "ooco-gym/tree/1", "shapes": {"cluster": [3], "candidates": [8, 4], "action_mask": [10],
                                                "decision": [2]},
        "rules": {"gate": {"whether": {"feature": "online_decodes", "at": 0.5, "below": {"answer": "partner"},
                                       "above": {"answer": "no"}}}}})


def read_tree(folder: Path) -> Any:
    from agents.explaining.rules import load_tree

    tree = load_tree(folder / "rule")
    return [plain(tree.document["rules"]), plain(tree.shapes)]


# --- Inputs -----------------------------------------------------------------------------------------------------------
def make_traces(folder: Path) -> None:
    from ooco_gym.workload import Trace, write_trace

    random = np.random.default_rng(3)
    trace = Trace(np.cumsum(random.exponential(0.5, 300)), random.integers(1, 4000, 300), random.integers(1, 500, 300),
                  online=random.random(300) < 0.5, session=np.arange(300) // 3)
    for ending in ("parquet", "csv", "csv.gz", "jsonl", "jsonl.gz"):
        write_trace(trace, folder / f"trace.{ending}")


def read_traces(folder: Path) -> Any:
    from ooco_gym.workload import read_trace

    found = []
    for ending in ("parquet", "csv", "csv.gz", "jsonl", "jsonl.gz"):
        for end_s in (np.inf, 40.0):
            trace = read_trace(folder / f"trace.{ending}", end_s=end_s)
            names = ("arrival_s", "prompt_tokens", "output_tokens", "online", "session")
            found.append([plain(getattr(trace, name)) for name in names])
    return found


def make_chip(folder: Path) -> None:
    of_tests("perf")
    from perf_chips import chip, measured_rows, write_tables  # pyright: ignore[reportMissingImports]
    from pyarrow import parquet

    from ooco_gym.perf import load_model

    write_tables(folder / "tables.parquet", measured_rows(load_model("llama_3_1_8b")))
    table = parquet.read_table(folder / "tables.parquet")
    parquet.write_table(table, folder / "tables.parquet", write_page_checksum=True)  # as `calibrate` writes them
    (folder / "chip.yaml").write_text(yaml.safe_dump(chip(tables="tables.parquet")))


def read_chip(folder: Path) -> Any:
    from ooco_gym.perf import Deployment, cost_table, load_chip

    load_chip(folder / "chip.yaml")
    table = cost_table(Deployment.from_config({"chip": str(folder / "chip.yaml"), "model": "llama_3_1_8b", "tp": 1,
                                               "timing": "measured"}), max_batch=64, max_prefill_tokens=4096)
    return plain(list(table))


GROUPS = {"cluster": "pair_7b", "workload": "azure_conv", "slo": "chat", "timing": "ooco_xllm", "offline": "ooc"}


def make_settings(folder: Path) -> None:
    for group, name in GROUPS.items():
        if (conf_root() / group / f"{name}.yaml").is_file():
            shutil.copy(conf_root() / group / f"{name}.yaml", folder / f"{group}.yaml")


def read_settings(folder: Path) -> Any:
    from ooco_gym.scenario import Scenario

    words = {group: str(folder / f"{group}.yaml") for group in ("cluster", "workload", "timing")}
    slo = load_yaml("slo", str(folder / "slo.yaml"))
    known = Scenario(**words, slo=slo, duration_s=10.0, rate_scale=0.05).resolve()  # pyright: ignore
    trace = known.workload.draw(start_s=0.0, duration_s=60.0, seed=1, rate_scale=0.05)
    return [repr(known.cluster), repr(known.slo), repr(known.deployments), plain(trace.prompt_tokens)]


def make_measured(folder: Path) -> None:
    of_tests("calibrate")
    from synthetic import rows, write  # pyright: ignore[reportMissingImports]
    from test_measure import plan  # pyright: ignore[reportMissingImports]

    from ooco_gym.calibrate.measure import measure

    (folder / "rows").mkdir()
    write(folder / "rows" / "operators.csv", rows()[:200])
    with contextlib.redirect_stdout(io.StringIO()):
        measure(plan(), folder / "engine")


def read_measured(folder: Path) -> Any:
    from experiments.common import recorded
    from experiments.common.served import read_measured
    from ooco_gym.calibrate.sources import Context, read

    found = [read(folder / part, Context(device="paper", model="formula")) for part in ("rows", "engine")]
    rows = [[plain(np.asarray(one["time_us"], float)) for one in part.rows] for part in found]
    engine = [[plain(one.seconds), plain(dict(one.sizes)), one.tp] for part in found for one in part.engine]
    served = [plain(read_measured(path)) for path in sorted((folder / "engine" / "serve").glob("*/requests.parquet"))]
    folders = sorted((folder / "engine" / "serve").iterdir())
    runs = [[recorded.requests_of(path / "requests.parquet", None), recorded.curves_of(path / "timeseries.csv", 0.0)]
            for path in folders]
    return [rows, engine, served, plain(runs)]


TARGETS = {
    "simulations": Target("kept simulations (`~/.cache/ooco-gym/runs`)", make_store, read_store),
    "peaks": Target("kept peak factors", make_peaks, read_peaks),
    "compiled": Target("compiled code (`.nbc`)", make_compiled, read_compiled),
    "run": Target("a run of `simulate`, read by `report`", make_run, read_run, text=("run/config.yaml",)),
    "sweep": Target("a sweep that is begun again", make_sweep, read_sweep,
                    left=("*/points.parquet", "*/requests.parquet", "*/samples.npz"), slow=True),
    "played": Target("windows that an evaluation has played", make_played, read_played),
    "policy": Target("a trained policy and the user's key", make_training, read_policy, text=("run/config.yaml",),
                     left=("run/checkpoints/*", "run/*.csv", "run/normalisation.json", "run/policy_last.zip",
                           "run/summary.json")),
    "training": Target("a training that is resumed", make_training, read_training, text=("run/config.yaml",),
                       left=("run/*.csv", "run/normalisation.json", "run/policy_last.zip", "run/checkpoints/step_*",
                             "run/summary.json"), slow=True),
    "bundle": Target("an exported policy", make_bundle, read_bundle, text=("bundle/card.json",),
                     left=("bundle/card.md",)),
    "weights": Target("weights of a rule and its YAML", make_weights, read_weights, text=("policy.yaml",)),
    "search": Target("a search of `tune` that goes on, and what it found", make_search, read_search,
                     text=("search/policy.yaml",), left=("*.md", "*.csv"), slow=True),
    "tree": Target("a rule of `explain`", make_tree, read_tree),
    "traces": Target("traces: Parquet, CSV, JSON lines, gzip", make_traces, read_traces,
                     text=("*.csv", "*.jsonl")),
    "chip": Target("a chip's YAML and its tables", make_chip, read_chip, text=("chip.yaml",)),
    "settings": Target("YAML of clusters, workloads, SLOs, timing", make_settings, read_settings, text=("*.yaml",),
                       left=("offline.yaml",)),
    "measured": Target("measurements of an engine", make_measured, read_measured,
                       text=("*.csv", "*.json"), left=("*.log", "engine/model/*"), slow=True),
}
