    for (int candidate = 0; candidate < n; candidate++) {
        scores[FIXED + candidate] = mask[FIXED + candidate] != 0
            ? head_of(own + candidate * WIDTH, head_weight, head_bias, 0) : MASKED;
    }
    copy(hidden, pool_bias, WIDTH);
    add_product(hidden, state, WIDTH + CONTEXT, pool_weight);
    squash(hidden);
    for (int action = 0; action < FIXED; action++) {
        scores[action] = head_of(hidden, fixed_weight, fixed_bias, action);
    }
