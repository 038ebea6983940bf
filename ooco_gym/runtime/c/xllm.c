/* Written by ooco-gym; do not edit. */
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

