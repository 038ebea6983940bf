"""`azure_conv` and `azure_code` beside the published curves of the Azure 2024 week, read off the plots."""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments.validity.columns import read_csv
from experiments.validity.markdown import number, percent, signed, table
from experiments.validity.section import Context, Figures, Section
from experiments.validity.svg import Axis, Panel, Series
from ooco_gym.workload.likeness import play
from ooco_gym.workload.spec import load_spec

SEED, RUNS, SHOWN, DRAWS = 11, 3, 80, 100_000
DAY_S, LIMIT = 86_400.0, 10.0
SERVICES = {"conv": 2, "code": 4}
"""Service, and the day of its week that the embedded workload is: Tuesday (the weeks begin on Sunday and Friday)."""
SIDES = ("prompt", "output")


def measure(context: Context) -> dict[str, Any]:
    """Compares the day's course and the lengths of both services."""
    found = {}
    for service, day in SERVICES.items():
        files = {key: context.file(f"traces/azure_2024_{service}_{key}_digitised.csv")
                 for key in ("rate", *(f"{side}_cdf" for side in SIDES))}
        spec = load_spec(f"azure_{service}")
        found[f"azure_{service}"] = {
            "rate": _rates(read_csv(files["rate"]), day, spec.arrivals),
            **{side: _lengths(read_csv(files[f"{side}_cdf"]), getattr(spec.lengths, side)) for side in SIDES}}
    return {"workloads": found}


def _rates(curve: dict[str, np.ndarray], day: int, arrivals: Any) -> dict[str, Any]:
    """The Tuesday of the curve and of the generator in the curve's own bins."""
    inside = (curve["t_s"] >= day * DAY_S) & (curve["t_s"] < (day + 1) * DAY_S)
    at_s, rate = curve["t_s"][inside] - day * DAY_S, curve["rate_rps"][inside]
    step_s = float(np.median(np.diff(curve["t_s"])))
    edges = np.concatenate([at_s - step_s / 2, [at_s[-1] + step_s / 2]]).clip(0.0, DAY_S)
    width = np.diff(edges)
    runs, minutes = [], []
    for seed in range(RUNS):
        arrival_s = play(arrivals, 0.0, DAY_S, SEED + seed)
        runs.append(np.diff(np.searchsorted(arrival_s, edges)) / width)
        minutes.append(np.diff(np.searchsorted(arrival_s, np.arange(0.0, DAY_S + 1, 60.0))) / 60.0)
    played = np.array(runs)
    relative = played / played.mean(axis=1, keepdims=True) / (rate / rate.mean()) - 1.0
    return {
        "mean": float(rate.mean()), "mean_model": float(played.mean()), "step_s": step_s,
        "peak": float(rate.max() / rate.mean()), "peak_model": float(np.mean(played.max(1) / played.mean(1))),
        "trough": float(rate.min() / rate.mean()), "trough_model": float(np.mean(played.min(1) / played.mean(1))),
        "peak_minute": float(curve["hi_rpm"][inside].max() / 60 / rate.mean()),
        "peak_minute_model": float(np.mean([item.max() / item.mean() for item in minutes])),
        "rms_percent": 100.0 * float(np.sqrt(np.mean(relative ** 2))),
        "curve": _hourly(at_s, rate), "model": _hourly(at_s, played[0])}


def _hourly(at_s: np.ndarray, rate: np.ndarray) -> list[float]:
    """Means by hour, for the plot."""
    hour = (at_s // 3600).astype(int)
    return (np.bincount(hour, rate, minlength=24) / np.maximum(np.bincount(hour, minlength=24), 1)).tolist()


def _lengths(curve: dict[str, np.ndarray], model: Any) -> dict[str, Any]:
    """Distance beyond what the curve's own width leaves open, as it is and with the generator's mean moved back."""
    drawn = np.sort(model.at((np.arange(DRAWS) + 0.5) / DRAWS).astype(np.float64))
    order = np.argsort(curve["tokens"], kind="stable")
    tokens, middle = curve["tokens"][order], np.maximum.accumulate(curve["F_mid"][order].clip(0, 100)) / 100
    low, high = (curve[key][order].clip(0, 100) / 100 for key in ("F_lo", "F_hi"))
    mean = float(np.sum(np.diff(tokens, prepend=0.0) * (1.0 - np.concatenate([[0.0], middle[:-1]]))))
    share = np.linspace(0.0, 1.0, SHOWN)
    return {"point": _point(tokens), "mean": mean, "mean_model": float(drawn.mean()),
            "ks": _distance(tokens, low, high, drawn),
            "ks_moved": _distance(tokens, low, high, drawn * mean / drawn.mean()),
            "curve": np.interp(share, middle, tokens).tolist(), "model": np.quantile(drawn, share).tolist()}


def _distance(tokens: np.ndarray, low: np.ndarray, high: np.ndarray, drawn: np.ndarray) -> float:
    """The largest distance of a sample's distribution function from a band, half a point's width to either side."""
    half = _point(tokens) / 2
    above = np.searchsorted(drawn, tokens - half, side="right") / len(drawn) - high
    below = low - np.searchsorted(drawn, tokens + half, side="right") / len(drawn)
    return float(max(0.0, above.max(), below.max()))


def _point(tokens: np.ndarray) -> float:
    """Tokens between two points of a digitised curve: nearer than that it says nothing."""
    return float(np.median(np.diff(np.unique(tokens))))


def write(figures: Figures) -> str:
    """Tables of the day's course and of lengths."""
    found = figures["workloads"]
    rates = [[f"`{name}`", *(f"{item['rate'][key]:.2f} / {item['rate'][f'{key}_model']:.2f}"
                             for key in ("peak", "trough", "peak_minute")), percent(item["rate"]["rms_percent"])]
             for name, item in found.items()]
    lengths = [[f"`{name}`", side, f"{number(one['mean'], 4)} / {number(one['mean_model'], 4)}", f"{one['ks']:.3f}",
                f"{one['ks_moved']:.3f}", f"{one['point']:.0f}"]
               for name, item in found.items() for side in SIDES for one in [item[side]]]
    return "\n\n".join([
        "The week itself is an external download; its plots were digitised. Curve against generator on the Tuesday "
        "that both workloads are. Gaps and dispersion of this week are not in the curves, so `azure_code`'s bursts of "
        "seconds are an assumption.",
        table(["workload", "peak/mean, 7 min", "trough/mean, 7 min", "peak/mean, 1 min", "RMS difference, 7 min"],
              rates), *_higher(found),
        "Lengths: the generators keep the curves' shape, but OOCO's Table 5 means; *moved* is the distance with the "
        "mean moved back to the curve's. A point of the plot is some tokens wide, and distances count beyond it.",
        table(["workload", "side", "mean tokens, curve / generator", "KS", "KS, mean moved", "a point, tokens"],
              lengths)])


def _higher(found: Figures) -> list[str]:
    """Where a generator's peaks are more than a tenth from the curve's, in a sentence."""
    said = []
    for name, item in found.items():
        off = {title: 100 * (item["rate"][f"{key}_model"] / item["rate"][key] - 1)
               for key, title in (("peak", "in 7 minutes"), ("peak_minute", "in 1 minute"))}
        if any(abs(value) > LIMIT for value in off.values()):
            said.append(f"**Off:** the peaks of `{name}` are " + ", ".join(
                f"{signed(value, 0)} {title}" for title, value in off.items()) + " from the curve's.")
    return said


def draw(figures: Figures) -> list[Panel]:
    """The day, and the lengths."""
    panels = []
    share = np.linspace(0.0, 1.0, SHOWN).tolist()
    hours = [hour + 0.5 for hour in range(24)]
    for place, (name, item) in enumerate(figures["workloads"].items()):
        rate = item["rate"]
        panels.append(Panel(f"{name}: a Tuesday, by the hour", Axis("hour (UTC)", limits=(0, 24)),
                            Axis("requests/s"), [Series("published curve", hours, rate["curve"], colour=place),
                                                 Series("generator", hours, rate["model"], "dashes", colour=-1)]))
    for side in SIDES:
        series = []
        for place, (name, item) in enumerate(figures["workloads"].items()):
            series += [Series(name, item[side]["curve"], share, colour=place),
                       Series("", item[side]["model"], share, "dashes", colour=place)]
        panels.append(Panel(f"{side.capitalize()} tokens (dashes: generator)",
                            Axis("tokens", limits=(0, 8000 if side == "prompt" else 800)), Axis("share at or below"),
                            series))
    return panels


SECTION = Section(220, "Azure 2024 beside its published curves", measure, write, draw)
