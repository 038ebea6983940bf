/* @about@
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
