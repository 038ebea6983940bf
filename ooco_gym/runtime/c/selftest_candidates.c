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

enum { COUNT = @count@, PLACES = @places@, ACTIONS = @actions@ };
@data@
int main(int argc, char **argv)
{
    int wrong = 0;
    double largest = 0.0;
    for (int i = 0; i < COUNT; i++) {
        float answer[ACTIONS];
        int actions[@NAME@_PARTS];
        int why = @name@_decide(cluster + i * @NAME@_CLUSTER, candidates + i * PLACES * @NAME@_FEATURES, PLACES,
                                action_mask + i * ACTIONS, decision + i * @NAME@_DECISIONS, answer, actions);
        int bad = why != @NAME@_OK;
        for (int j = 0; j < ACTIONS && why == @NAME@_OK; j++) {
            if (action_mask[i * ACTIONS + j] != 0) {
                double wanted = logits[i * ACTIONS + j], away = fabs((double)answer[j] - wanted);
                largest = away > largest ? away : largest;
                bad |= !(away <= 1e-5 * fmax(1.0, fabs(wanted)));
            }
        }
        wrong += bad;
    }
    printf("@name@: %d of %d reference vectors are answered as they should be, largest difference %.1e\n",
           COUNT - wrong, (int)COUNT, largest);
    long repeats = argc > 1 ? strtol(argv[1], NULL, 10) : 0;
    if (repeats > 0) {
        int actions[@NAME@_PARTS];
        double begun = seconds();
        for (long i = 0; i < repeats; i++) {
            long j = i % COUNT;
            wrong += @name@_decide(cluster + j * @NAME@_CLUSTER, candidates + j * PLACES * @NAME@_FEATURES, PLACES,
                                   action_mask + j * ACTIONS, decision + j * @NAME@_DECISIONS, NULL, actions)
                     != @NAME@_OK;
        }
        printf("%.3f us a decision\n", 1e6 * (seconds() - begun) / (double)repeats);
    }
    return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
