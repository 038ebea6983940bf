/* @name@ as llm-d's plug-ins expect figures, through cgo: Scorer, EvictionOrderingPolicy.
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
