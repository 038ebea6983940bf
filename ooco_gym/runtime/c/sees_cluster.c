    for (int i = 0; i < CLUSTER; i++) {
        for (int out = 0; out < @first@; out++) {
            beside[out] += layer0_weight[(FEATURES + i) * @first@ + out] * cluster[i];
        }
    }
