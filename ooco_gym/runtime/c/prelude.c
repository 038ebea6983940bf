/* Written by ooco-gym; do not edit. Compile with -O2 or -O3, without -ffast-math. */
#include "policy.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __FAST_MATH__
#error "this file rounds by adding and subtracting, which -ffast-math takes apart"
#endif

