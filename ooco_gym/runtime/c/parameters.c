int @name@_decide(const float *features, double *values)
{
    double x[FEATURES], z[PARAMETERS];
    for (int i = 0; i < FEATURES; i++) {
        if (!isfinite(features[i])) {
            return @NAME@_NOT_FINITE;
        }
        x[i] = features[i];
    }
    for (int i = 0; i < PARAMETERS; i++) {
        z[i] = bias[i];
        for (int j = 0; j < FEATURES; j++) {
            z[i] += weight[i * FEATURES + j] * x[j];
        }
        if (!isfinite(z[i])) {
            return @NAME@_BROKEN;
        }
        double exponent = z[i] * of_step[i];
        exponent = exponent < -80.0 ? -80.0 : (exponent > 80.0 ? 80.0 : exponent);
        double value = is_log[i] ? of_base[i] * exp(exponent) : of_base[i] + z[i] * of_step[i];
        value = value < of_low[i] ? of_low[i] : value;
        values[i] = value > of_high[i] ? of_high[i] : value;
    }
    return @NAME@_OK;
}

int @name@_outside(const float *features)
{
    int outside = 0;
    for (int i = 0; i < FEATURES; i++) {
        outside |= !(features[i] >= low_cluster[i] && features[i] <= high_cluster[i]);
    }
    return outside;
}
