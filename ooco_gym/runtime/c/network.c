#define MASKED (-1e8f)

static int finite_all(const float *x, int n)
{
    float sum = 0.0f; /* x - x is 0 if x is finite, else no number */
    for (int i = 0; i < n; i++) {
        sum += x[i] - x[i];
    }
    return sum == 0.0f;
}

static inline void copy(float *restrict to, const float *restrict from, int n)
{
    memcpy(to, from, (size_t)n * sizeof *to);
}

static inline float scaled(float x, float mean, float deviation)
{
    float z = (x - mean) / deviation;
    z = z < -8.0f ? -8.0f : z;
    return z > 8.0f ? 8.0f : z;
}

/* tanh(x) = (e - 1) / (e + 1) with e = exp(2 x) = 2^k exp(r), |r| <= ln 2 / 2. */
static inline float tanh_of(float x)
{
    float y = x < -9.0f ? -9.0f : x;
    y = 2.0f * (y > 9.0f ? 9.0f : y);
    float k = (y * 1.44269504f + 12582912.0f) - 12582912.0f; /* rounds to the nearest whole number */
    float r = (y - k * 0.693359375f) + k * 2.12194440e-4f;
    float p = 1.0f / 5040.0f;
    p = p * r + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    int32_t bits = ((int32_t)k + 127) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    float e = p * power;
    return (e - 1.0f) / (e + 1.0f);
}

static inline void squash(float *restrict x)
{
    for (int i = 0; i < WIDTH; i++) {
        x[i] = tanh_of(x[i]);
    }
}

/* out (WIDTH) += x (n) times weight (n rows of WIDTH). */
static inline void add_product(float *restrict out, const float *restrict x, int n, const float *restrict weight)
{
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < WIDTH; j++) {
            out[j] += x[i] * weight[i * WIDTH + j];
        }
    }
}

static float dot(const float *restrict x, const float *restrict y)
{
    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (int i = 0; i < WIDTH; i += 4) {
        for (int j = 0; j < 4; j++) {
            sum[j] += x[i + j] * y[i + j];
        }
    }
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

static float head_of(const float *hidden, const float *weight, const float *bias, int output)
{
    return dot(hidden, weight + output * WIDTH) + bias[output];
}

