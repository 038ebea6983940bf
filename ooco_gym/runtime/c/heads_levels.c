    for (int part = 0, first = 0; part < PARTS; first += levels[part], part++) {
        for (int level = 0; level < levels[part]; level++) {
            scores[first + level] = head_of(own + part * WIDTH, head_weight, head_bias, level);
        }
    }
