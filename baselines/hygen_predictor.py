"""HyGen's latency predictor (arXiv 2501.14808, 4.2, Eq. 1): linear regression on seven sums over a batch.

The paper leaves open what S_d counts. New tokens of decodes are as many as the decodes themselves, a column twice, so
it is the sum of their context lengths here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

# The columns of Eq. 1 with its intercept, in order.
FEATURES = ("one", "prefill_tokens", "decode_tokens", "prefill_squared", "decode_squared", "prefills", "decodes")
HELD_OUT = 0.2  # share of the samples that the error is measured on


class Fit(NamedTuple):
    """A fitted predictor.

    Attributes:
        coefficients: float64[columns], of Eq. 1 in the order of `FEATURES`; the unit of the latencies, per unit of
            the column.
        mape: mean absolute percentage error on samples left out of the fit (0.01 is 1 %).
    """

    coefficients: np.ndarray
    mape: float


def features(prefill_tokens: Any, decode_tokens: Any, prefills: Any, decodes: Any) -> np.ndarray:
    """The columns of Eq. 1, float64[n, 7].

    Args:
        prefill_tokens: new prompt tokens of each batch (S_p), [n] or a number.
        decode_tokens: context lengths of each batch's decodes, summed (S_d), tokens.
        prefills: how many requests prefill (N_p).
        decodes: how many decode (N_d).
    """
    sums = np.broadcast_arrays(*(np.asarray(part, np.float64) for part in
                                 (prefill_tokens, decode_tokens, prefills, decodes)))
    prompt, context, n_prompts, n_decodes = (np.atleast_1d(part) for part in sums)
    return np.stack([np.ones_like(prompt), prompt, context, prompt**2, context**2, n_prompts, n_decodes], axis=1)


def fit(columns: np.ndarray, latency: np.ndarray) -> Fit:
    """Fits by least squares on all but the last samples, which the error is measured on.

    Args:
        columns: float64[n, columns], `features` or some of them, in random order. Columns that are zero throughout get
            the coefficient 0.
        latency: float64[n], measured; any unit.
    """
    held = max(1, int(HELD_OUT * len(latency)))
    scale = np.abs(columns).max(axis=0)
    used = scale > 0.0  # squares of tokens are 10^8 and more: unscaled, they would drown the others
    solved = np.zeros(columns.shape[1])
    solved[used] = np.linalg.lstsq(columns[:-held, used] / scale[used], latency[:-held], rcond=None)[0] / scale[used]
    error = np.abs(columns[-held:] @ solved / latency[-held:] - 1.0)
    return Fit(solved, float(error.mean()))
