int @name@_decide(const float *cluster, const float *candidates, int n, const signed char *mask,
                  const float *decision, float *logits, int *actions)
{
    float scores[FIXED + MOST + @spare@];
    if (n < 0 || n > MOST || (TIED && n != PLACES)) {
        return @NAME@_WRONG_SIZE;
    }
    int count = @all@;
    int legal = 0;
    for (int action = 0; action < count; action++) {
        legal += mask[action] != 0;
    }
    if (legal == 0) {
        return @NAME@_NOTHING_LEGAL;
    }
    if (!finite_all(cluster, CLUSTER) || !finite_all(candidates, n * FEATURES) || !finite_all(decision, DECISIONS)) {
        return @NAME@_NOT_FINITE;
    }
    score(cluster, candidates, n, mask, decision, scores);
    if (!finite_all(scores, count)) {
        return @NAME@_BROKEN;
    }
    for (int action = 0; action < count; action++) {
        scores[action] = mask[action] != 0 ? scores[action] : MASKED;
    }
@choose@    if (logits != NULL) {
        memcpy(logits, scores, (size_t)count * sizeof *logits);
    }
    return @NAME@_OK;
}

int @name@_outside(const float *cluster, const float *candidates, int n, const signed char *mask)
{
    int outside = 0;
    for (int i = 0; i < CLUSTER; i++) {
        outside |= !(cluster[i] >= low_cluster[i] && cluster[i] <= high_cluster[i]);
    }
    for (int candidate = 0; candidate < n; candidate++) {
        for (int i = 0; i < FEATURES && (PARTS > 1 || mask[FIXED + candidate] != 0); i++) {
            float x = candidates[candidate * FEATURES + i];
            outside |= !(x >= low_candidates[i] && x <= high_candidates[i]);
        }
    }
    return outside;
}
