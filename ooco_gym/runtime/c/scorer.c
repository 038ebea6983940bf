#define MASKED (-1e8f)

static int finite_all(const float *x, int n)
{
    float sum = 0.0f; /* x - x is 0 if x is finite, else no number */
    for (int i = 0; i < n; i++) {
        sum += x[i] - x[i];
    }
    return sum == 0.0f;
}

/* Fixed actions by the cluster, each candidate by layers over its features. */
static void score(const float *cluster, const float *candidates, int n, const signed char *mask, const float *decision,
                  float *scores)
{
    double x[FEATURES], y[1], beside[@first@];
    (void)decision;
    memcpy(beside, layer0_bias, sizeof beside);
    for (int action = 0; action < FIXED; action++) {
        double sum = fixed_bias[action];
        for (int i = 0; i < CLUSTER; i++) {
            sum += fixed_weight[action * CLUSTER + i] * cluster[i];
        }
        scores[action] = (float)sum;
    }
@cluster_too@    for (int candidate = 0; candidate < n; candidate++) {
        if (mask[FIXED + candidate] == 0) {
            scores[FIXED + candidate] = MASKED;
            continue;
        }
        for (int i = 0; i < FEATURES; i++) {
            x[i] = candidates[candidate * FEATURES + i];
        }
        layers(beside, x, y);
        scores[FIXED + candidate] = (float)y[0];
    }
}

