"""The parts of the C files that `c_source` writes: @name@ is the policy's name, other words in @ are filled in."""

HEADER_CANDIDATES = """/* @about@
   Written by ooco-gym (form c of a policy bundle); do not edit. C11, no dependencies but the C library. */
#ifndef @NAME@_H
#define @NAME@_H

#ifdef __cplusplus
extern "C" {
#endif

#define @NAME@_CLUSTER @cluster@ /* features of the cluster, scaled as the manifest says */
#define @NAME@_FEATURES @features@ /* features of a candidate */
#define @NAME@_DECISIONS @decisions@ /* length of the one-hot decision */
#define @NAME@_FIXED @fixed@ /* actions that take no candidate */
#define @NAME@_PLACES @places@ /* candidates at a time in training */
#define @NAME@_MOST @most@ /* candidates at a time here */
#define @NAME@_PARTS @parts@ /* whole numbers of an action */

enum {
    @NAME@_OK = 0,
    @NAME@_NOT_FINITE = 1, /* a feature is not finite */
    @NAME@_NOTHING_LEGAL = 2, /* the mask allows no action */
    @NAME@_WRONG_SIZE = 3, /* n is out of range */
    @NAME@_BROKEN = 4 /* the network's answer is not finite */
};

/* What each action means, in training; @actions@ */
extern const char *const @name@_actions[];

/* Takes the best legal action. Thread-safe; nothing is allocated.
   cluster: @cluster@ numbers; candidates: n rows of @features@; mask: one flag for each of the fixed actions, then one
   for each candidate (of an action of levels: one for each level); decision: one-hot, @decisions@ numbers.
   logits: where each action's preference is written, -1e8 where it is not legal; may be NULL.
   actions: where the answer is written: the number of the action, or a level for each part.
   Returns @NAME@_OK, or why there is no answer: the caller's own rule decides then. */
int @name@_decide(const float *cluster, const float *candidates, int n, const signed char *mask,
                  const float *decision, float *logits, int *actions);

/* 1 where a feature is outside of what the policy was trained on: the caller's own rule should decide. */
int @name@_outside(const float *cluster, const float *candidates, int n, const signed char *mask);

#ifdef __cplusplus
}
#endif
#endif
"""

PRELUDE = """/* Written by ooco-gym; do not edit. Compile with -O2 or -O3, without -ffast-math. */
#include "policy.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __FAST_MATH__
#error "this file rounds by adding and subtracting, which -ffast-math takes apart"
#endif

"""

_NETWORK = """#define MASKED (-1e8f)

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

/* The score of one output; of heads for every kind of decision that of the one that is due. */
static float head_of(const float *hidden, const float *weight, const float *bias, int output, const float *decision)
{
    if (KINDS == 1) {
        return dot(hidden, weight + output * WIDTH) + bias[output];
    }
    float score = 0.0f;
    for (int kind = 0; kind < KINDS; kind++) {
        int row = output * KINDS + kind;
        score += decision[kind] * (dot(hidden, weight + row * WIDTH) + bias[row]);
    }
    return score;
}

"""

SET = _NETWORK + """/* A deep set: each candidate is embedded beside the context, and sees the mean of all of them. */
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

"""

FLAT = _NETWORK + """/* Two layers over all features side by side. */
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

"""

SCORER = """#define MASKED (-1e8f)

static int finite_all(const float *x, int n)
{
    float sum = 0.0f; /* x - x is 0 if x is finite, else no number */
    for (int i = 0; i < n; i++) {
        sum += x[i] - x[i];
    }
    return sum == 0.0f;
}

/* Fixed actions by the cluster, each candidate by layers over its features. */
static void score(const float *cluster, const float *candidates, int n, const signed char *mask, const float *decision,
                  float *scores)
{
    double x[FEATURES], y[1], beside[@first@];
    (void)decision;
    memcpy(beside, layer0_bias, sizeof beside);
    for (int action = 0; action < FIXED; action++) {
        double sum = fixed_bias[action];
        for (int i = 0; i < CLUSTER; i++) {
            sum += fixed_weight[action * CLUSTER + i] * cluster[i];
        }
        scores[action] = (float)sum;
    }
@cluster_too@    for (int candidate = 0; candidate < n; candidate++) {
        if (mask[FIXED + candidate] == 0) {
            scores[FIXED + candidate] = MASKED;
            continue;
        }
        for (int i = 0; i < FEATURES; i++) {
            x[i] = candidates[candidate * FEATURES + i];
        }
        layers(beside, x, y);
        scores[FIXED + candidate] = (float)y[0];
    }
}

"""

TAIL_CANDIDATES = """int @name@_decide(const float *cluster, const float *candidates, int n, const signed char *mask,
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
"""

HEADER_PARAMETERS = """/* @about@
   Written by ooco-gym (form c of a policy bundle); do not edit. C11, no dependencies but the C library (-lm). */
#ifndef @NAME@_H
#define @NAME@_H

#ifdef __cplusplus
extern "C" {
#endif

#define @NAME@_FEATURES @features@ /* scaled as the manifest says */
#define @NAME@_PARAMETERS @parameters@

enum {
    @NAME@_OK = 0,
    @NAME@_NOT_FINITE = 1, /* a feature is not finite */
    @NAME@_BROKEN = 4 /* the network's answer is not finite */
};

/* Names of the parameters, in their order:
@listed@ */
extern const char *const @name@_names[];

/* Writes the value of each parameter, within its bounds. Thread-safe; nothing is allocated.
   Returns @NAME@_OK, or why there is no answer: the rule keeps its own values then. */
int @name@_decide(const float *features, double *values);

/* 1 where a feature is outside of what the policy was trained on: the rule should keep its own values. */
int @name@_outside(const float *features);

#ifdef __cplusplus
}
#endif
#endif
"""

PARAMETERS = """int @name@_decide(const float *features, double *values)
{
    double x[FEATURES], z[PARAMETERS];
    for (int i = 0; i < FEATURES; i++) {
        if (!isfinite(features[i])) {
            return @NAME@_NOT_FINITE;
        }
        x[i] = features[i];
    }
    layers(layer0_bias, x, z);
    for (int i = 0; i < PARAMETERS; i++) {
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
"""
