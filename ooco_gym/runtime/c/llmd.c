/* Written by ooco-gym; do not edit. */
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
