/* Written by ooco-gym; do not edit. */
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
