    for (int part = 0, first = 0; part < PARTS; first += levels[part], part++) {
        int best = 0;
        for (int level = 1; level < levels[part]; level++) {
            if (scores[first + level] > scores[first + best]) {
                best = level;
            }
        }
        actions[part] = best;
    }
