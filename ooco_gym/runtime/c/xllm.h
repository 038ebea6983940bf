/* @name@ as functions in the shape of xLLM's decisions (PDOOCScheduler:
   offline admission, choice of the victim, the strict batch's limit, the pull). Written by ooco-gym; do not edit. */
#ifndef @NAME@_XLLM_H
#define @NAME@_XLLM_H

#include "policy.h"

#ifdef __cplusplus
extern "C" {
#endif

#define @NAME@_NONE (-1) /* none of them */
#define @NAME@_OWN_RULE (-2) /* the engine's own rule is to decide */

@declarations@
#ifdef __cplusplus
}
#endif
#endif
