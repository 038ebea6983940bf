/* @about@
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
