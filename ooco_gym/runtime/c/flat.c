/* Two layers over all features side by side. */
static void score(const float *cluster, const float *candidates, int n, const signed char *mask, const float *decision,
                  float *scores)
{
    enum { ACTIONS = @actions@, INPUTS = CONTEXT + PLACES * FEATURES + ACTIONS };
    float x[INPUTS], first[WIDTH], second[WIDTH];
    for (int i = 0; i < CLUSTER; i++) {
        x[i] = scaled(cluster[i], cluster_mean[i], cluster_deviation[i]);
    }
    copy(x + CLUSTER, decision, DECISIONS);
    for (int candidate = 0; candidate < n; candidate++) {
        int there = @there@;
        for (int i = 0; i < FEATURES; i++) {
            int place = candidate * FEATURES + i;
            x[CONTEXT + place] = there
                ? scaled(candidates[place], candidates_mean[i], candidates_deviation[i]) : 0.0f;
        }
    }
    for (int action = 0; action < ACTIONS; action++) {
        x[CONTEXT + PLACES * FEATURES + action] = mask[action] != 0 ? 1.0f : 0.0f;
    }
    copy(first, first_bias, WIDTH);
    add_product(first, x, INPUTS, first_weight);
    squash(first);
    copy(second, second_bias, WIDTH);
    add_product(second, first, WIDTH, second_weight);
    squash(second);
    for (int action = 0; action < ACTIONS; action++) {
        scores[action] = head_of(second, last_weight, last_bias, action, decision);
    }
}

