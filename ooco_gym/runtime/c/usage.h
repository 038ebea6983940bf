/* @name@ as llm-d's UsageLimitPolicy expects figures, through cgo.
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
