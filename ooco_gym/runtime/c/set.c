/* A deep set: each candidate is embedded beside the context, and sees the mean of all of them. */
static void score(const float *cluster, const float *candidates, int n, const signed char *mask, const float *decision,
                  float *scores)
{
    (void)mask;
    float context[CONTEXT], beside[WIDTH], state[WIDTH + CONTEXT], hidden[WIDTH];
    float own[MOST * WIDTH];
    float seen[FEATURES];
    for (int i = 0; i < CLUSTER; i++) {
        context[i] = scaled(cluster[i], cluster_mean[i], cluster_deviation[i]);
    }
    copy(context + CLUSTER, decision, DECISIONS);
    copy(beside, embed_bias, WIDTH);
    add_product(beside, context, CONTEXT, context_weight);
    memset(state, 0, sizeof state);
    int there = 0;
    for (int candidate = 0; candidate < n; candidate++) {
        if (!(@there@)) {
            continue;
        }
        float *mine = own + candidate * WIDTH;
        const float *place = @place@;
        for (int i = 0; i < FEATURES; i++) {
            seen[i] = scaled(candidates[candidate * FEATURES + i], candidates_mean[i], candidates_deviation[i]);
        }
        copy(mine, beside, WIDTH);
        if (place != NULL) {
            for (int j = 0; j < WIDTH; j++) {
                mine[j] += place[j];
            }
        }
        add_product(mine, seen, FEATURES, embed_weight);
        squash(mine);
        for (int j = 0; j < WIDTH; j++) {
            state[j] += mine[j];
        }
        there++;
    }
    for (int j = 0; j < WIDTH; j++) {
        state[j] /= (float)(there > 0 ? there : 1);
    }
    copy(state + WIDTH, context, CONTEXT);
    copy(beside, own_bias, WIDTH);
    add_product(beside, state, WIDTH + CONTEXT, state_weight);
    for (int candidate = 0; candidate < n; candidate++) {
        if (!(@there@)) {
            continue;
        }
        float *mine = own + candidate * WIDTH;
        copy(hidden, beside, WIDTH);
        add_product(hidden, mine, WIDTH, own_weight);
        squash(hidden);
        copy(mine, hidden, WIDTH);
    }
@heads@}

