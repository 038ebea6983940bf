"""The C functions of `target=c`: a policy in the shape of the decision functions of xLLM, and of llm-d's plug-ins.

They are thin: flat arrays in, an answer out, and where the policy gives none (a feature that is not finite, or outside
of its training) a value that tells the engine to use its own rule. Which of them a policy has follows from what it was
trained to decide.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

XLLM, LLMD = ("policy_xllm.h", "policy_xllm.c"), ("policy_llmd.h", "policy_llmd.c")

# By the decision that a policy was trained for: the function's name, what it says, what it returns.
_ADMIT, _VICTIM, _LIMIT, _PULL = "admit_offline", "victim", "strict_limit", "pull"
_OF = {"gate": _ADMIT, "admit": _ADMIT, "evict": _VICTIM, "interrupt": _VICTIM, "pack": _LIMIT, "pull": _PULL}
_SAYS = {
    _ADMIT: "Which of n waiting offline requests begins its prefill now (its number), or @NAME@_NONE.",
    _VICTIM: "Which of n offline requests gives its memory up (its number), or @NAME@_NONE.",
    _LIMIT: "Which of n offline decodes enters the strict step next (its number), or @NAME@_NONE: the batch is full.",
    _PULL: "Which of n decoding offline requests the strict instance pulls (its number), or @NAME@_NONE.",
}
_XLLM_HEAD = """/* @name@ as functions in the shape of xLLM's decisions (PDOOCScheduler:
   offline admission, choice of the victim, the strict batch's limit, the pull). Written by ooco-gym; do not edit. */
#ifndef @NAME@_XLLM_H
#define @NAME@_XLLM_H

#include "policy.h"

#ifdef __cplusplus
extern "C" {
#endif

#define @NAME@_NONE (-1) /* none of them */
#define @NAME@_OWN_RULE (-2) /* the engine's own rule is to decide */

@declarations@
#ifdef __cplusplus
}
#endif
#endif
"""
_XLLM_FUNCTION = """/* @says@
   cluster: @NAME@_CLUSTER numbers; candidates: n rows of @NAME@_FEATURES numbers, as the manifest says.
   allowed: 1 for each candidate that may be taken; NULL allows all of them.
   @NAME@_OWN_RULE where the policy gives no answer, or leaves the decision to the rule that it was trained beside. */
int @name@_@function@(const float *cluster, const float *candidates, int n, const signed char *allowed)"""
_XLLM_SOURCE = """/* Written by ooco-gym; do not edit. */
#include "policy_xllm.h"

#include <stddef.h>

static int chosen(int decision, const float *cluster, const float *candidates, int n, const signed char *allowed)
{
    signed char mask[@NAME@_FIXED + @NAME@_MOST];
    float due[@NAME@_DECISIONS] = {0.0f};
    int action = 0;
    if (n < 0 || n > @NAME@_MOST) {
        return @NAME@_OWN_RULE;
    }
    for (int i = 0; i < @NAME@_FIXED; i++) {
        mask[i] = 1;
    }
    for (int i = 0; i < n; i++) {
        mask[@NAME@_FIXED + i] = allowed == NULL || allowed[i] != 0;
    }
    due[decision] = 1.0f;
    if (@name@_outside(cluster, candidates, n, mask)
        || @name@_decide(cluster, candidates, n, mask, due, NULL, &action) != @NAME@_OK) {
        return @NAME@_OWN_RULE;
    }
    if (action >= @NAME@_FIXED) {
        return action - @NAME@_FIXED;
    }
    return action == 0 ? @NAME@_NONE : @NAME@_OWN_RULE;
}

"""
_LLMD_HEAD = """/* @name@ as llm-d's plug-ins expect figures, through cgo: Scorer, EvictionOrderingPolicy.
   Written by ooco-gym; do not edit. */
#ifndef @NAME@_LLMD_H
#define @NAME@_LLMD_H

#include "policy.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Scorer: a score from 0 to 1 for each of n endpoints, the preferred one highest; the rest in the order of preference.
   Returns 0, or what @name@_decide returns where there are no scores. */
int @name@_score(const float *cluster, const float *candidates, int n, double *scores);

/* EvictionOrderingPolicy.Less: 1 if item a is to be evicted before item b, 0 if not, -1 where the policy does not say.
   An item is a row of @NAME@_FEATURES numbers. */
int @name@_less(const float *cluster, const float *a, const float *b);

#ifdef __cplusplus
}
#endif
#endif
"""
_LLMD_SOURCE = """/* Written by ooco-gym; do not edit. */
#include "policy_llmd.h"

#include <math.h>
#include <stddef.h>

int @name@_score(const float *cluster, const float *candidates, int n, double *scores)
{
    signed char mask[@NAME@_FIXED + @NAME@_MOST];
    float due[@NAME@_DECISIONS] = {0.0f}, logits[@NAME@_FIXED + @NAME@_MOST];
    int action = 0;
    if (n < 0 || n > @NAME@_MOST) {
        return @NAME@_WRONG_SIZE;
    }
    for (int i = 0; i < @NAME@_FIXED + n; i++) {
        mask[i] = 1;
    }
    due[@decision@] = 1.0f;
    int why = @name@_decide(cluster, candidates, n, mask, due, logits, &action);
    if (why != @NAME@_OK) {
        return why;
    }
    double best = -HUGE_VAL;
    for (int i = 0; i < n; i++) {
        best = fmax(best, logits[@NAME@_FIXED + i]);
    }
    for (int i = 0; i < n; i++) {
        scores[i] = exp(logits[@NAME@_FIXED + i] - best);
    }
    return @NAME@_OK;
}

int @name@_less(const float *cluster, const float *a, const float *b)
{
    float both[2 * @NAME@_FEATURES];
    double scores[2];
    for (int i = 0; i < @NAME@_FEATURES; i++) {
        both[i] = a[i];
        both[@NAME@_FEATURES + i] = b[i];
    }
    if (@name@_score(cluster, both, 2, scores) != @NAME@_OK) {
        return -1;
    }
    return scores[0] > scores[1];
}
"""
_USAGE_HEAD = """/* @name@ as llm-d's UsageLimitPolicy expects figures, through cgo.
   Written by ooco-gym; do not edit. */
#ifndef @NAME@_LLMD_H
#define @NAME@_LLMD_H

#include "policy.h"

#ifdef __cplusplus
extern "C" {
#endif

/* UsageLimitPolicy.ComputeLimit: the ceiling of usage, from 0 to 1, of each of n priorities, the highest first.
   The highest is never gated; the others get the value of the parameter `share` (one from 0 to 1, such as
   @shares@), so that ceilings do not rise with the priority's number.
   Returns 0, or what @name@_decide returns: ceilings are then left as they are, and nothing is gated. */
int @name@_ceilings(const float *features, int share, int n, double *ceilings);

#ifdef __cplusplus
}
#endif
#endif
"""
_USAGE_SOURCE = """/* Written by ooco-gym; do not edit. */
#include "policy_llmd.h"

int @name@_ceilings(const float *features, int share, int n, double *ceilings)
{
    double values[@NAME@_PARAMETERS];
    int why = @name@_outside(features) ? @NAME@_NOT_FINITE : @name@_decide(features, values);
    if (why != @NAME@_OK || share < 0 || share >= @NAME@_PARAMETERS) {
        return why != @NAME@_OK ? why : @NAME@_BROKEN;
    }
    double limit = values[share] < 0.0 ? 0.0 : (values[share] > 1.0 ? 1.0 : values[share]);
    for (int i = 0; i < n; i++) {
        ceilings[i] = i == 0 ? 1.0 : limit;
    }
    return @NAME@_OK;
}
"""


def engine_sources(manifest: Mapping[str, Any]) -> dict[str, str]:
    """The text of the engines' files of a policy by name; none where its answers fit no engine's function."""
    if manifest["kind"] == "parameters":
        shares = [f"{place}: {one['name']}" for place, one in enumerate(manifest["parameters"])
                  if one["low"] >= 0.0 and one["high"] <= 1.0]
        if not shares:
            return {}
        return {LLMD[0]: _USAGE_HEAD.replace("@shares@", ", ".join(shares)), LLMD[1]: _USAGE_SOURCE}
    if manifest.get("parts") or manifest["network"]["form"] == "flat":
        return {}  # a vector of levels is no choice among candidates; a flat network takes no other number of them
    kinds = [row["name"] for row in manifest["inputs"]["decision"]["features"]]
    texts = {LLMD[0]: _LLMD_HEAD, LLMD[1]: _LLMD_SOURCE.replace("@decision@", str(_first(manifest, kinds)))}
    functions = {_OF[name]: kinds.index(name) for name in manifest["decisions"] if name in _OF and name in kinds}
    if functions:
        declared = {name: _XLLM_FUNCTION.replace("@says@", _SAYS[name]).replace("@function@", name)
                    for name in functions}
        texts[XLLM[0]] = _XLLM_HEAD.replace("@declarations@", "".join(f"{text};\n\n" for text in declared.values()))
        texts[XLLM[1]] = _XLLM_SOURCE + "\n".join(
            f"int @name@_{name}(const float *cluster, const float *candidates, int n, const signed char *allowed)\n"
            f"{{\n    return chosen({place}, cluster, candidates, n, allowed);\n}}\n"
            for name, place in functions.items())
    return texts


def _first(manifest: Mapping[str, Any], kinds: list[str]) -> int:
    """The place of the first decision that the policy was trained for."""
    return next((kinds.index(name) for name in manifest["decisions"] if name in kinds), 0)
