    int best = -1;
    for (int action = 0; action < FIXED + n; action++) {
        if (mask[action] != 0 && (best < 0 || scores[action] > scores[best])) {
            best = action;
        }
    }
    actions[0] = best;
