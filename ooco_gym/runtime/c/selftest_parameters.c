/* Replays the reference vectors of the bundle: @name@_selftest [repeats].
   Exits with 0 if all of them are answered as they should be. */
#include "policy.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double seconds(void) /* processor time: other processes do not count */
{
    return (double)clock() / CLOCKS_PER_SEC;
}

enum { COUNT = @count@ };
@data@
int main(int argc, char **argv)
{
    int wrong = 0;
    double largest = 0.0, values[@NAME@_PARAMETERS];
    for (int i = 0; i < COUNT; i++) {
        int bad = @name@_decide(cluster + i * @NAME@_FEATURES, values) != @NAME@_OK;
        for (int j = 0; j < @NAME@_PARAMETERS && !bad; j++) {
            double right = wanted[i * @NAME@_PARAMETERS + j], away = fabs(values[j] - right);
            largest = away > largest ? away : largest;
            bad |= !(away <= 1e-5 * fmax(1.0, fabs(right)));
        }
        wrong += bad;
    }
    printf("@name@: %d of %d reference vectors are answered as they should be, largest difference %.1e\n",
           COUNT - wrong, (int)COUNT, largest);
    long repeats = argc > 1 ? strtol(argv[1], NULL, 10) : 0;
    if (repeats > 0) {
        double begun = seconds();
        for (long i = 0; i < repeats; i++) {
            wrong += @name@_decide(cluster + i % COUNT * @NAME@_FEATURES, values) != @NAME@_OK;
        }
        printf("%.3f us a decision\n", 1e6 * (seconds() - begun) / (double)repeats);
    }
    return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
