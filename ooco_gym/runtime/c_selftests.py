"""The C programs that replay a bundle's reference vectors, and the CMake file that builds them."""

_REPORT = """    printf("@name@: %d of %d reference vectors are answered as they should be, largest difference %.1e\\n",
           COUNT - wrong, (int)COUNT, largest);
    long repeats = argc > 1 ? strtol(argv[1], NULL, 10) : 0;
"""

_MEASURE = """#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double seconds(void) /* processor time: other processes do not count */
{
    return (double)clock() / CLOCKS_PER_SEC;
}

"""

SELF_TEST_CANDIDATES = """/* Replays the reference vectors of the bundle: @name@_selftest [repeats].
   Exits with 0 if all of them are answered as they should be. */
#include "policy.h"

#include <math.h>
""" + _MEASURE + """enum { COUNT = @count@, PLACES = @places@, ACTIONS = @actions@ };
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
""" + _REPORT + """    if (repeats > 0) {
        int actions[@NAME@_PARTS];
        double begun = seconds();
        for (long i = 0; i < repeats; i++) {
            long j = i % COUNT;
            wrong += @name@_decide(cluster + j * @NAME@_CLUSTER, candidates + j * PLACES * @NAME@_FEATURES, PLACES,
                                   action_mask + j * ACTIONS, decision + j * @NAME@_DECISIONS, NULL, actions)
                     != @NAME@_OK;
        }
        printf("%.3f us a decision\\n", 1e6 * (seconds() - begun) / (double)repeats);
    }
    return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
"""

SELF_TEST_PARAMETERS = """/* Replays the reference vectors of the bundle: @name@_selftest [repeats].
   Exits with 0 if all of them are answered as they should be. */
#include "policy.h"

#include <math.h>
""" + _MEASURE + """enum { COUNT = @count@ };
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
""" + _REPORT + """    if (repeats > 0) {
        double begun = seconds();
        for (long i = 0; i < repeats; i++) {
            wrong += @name@_decide(cluster + i % COUNT * @NAME@_FEATURES, values) != @NAME@_OK;
        }
        printf("%.3f us a decision\\n", 1e6 * (seconds() - begun) / (double)repeats);
    }
    return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
"""

CMAKE = """# Builds the policy as a library and its self-test:
#   cmake -B build -DCMAKE_BUILD_TYPE=Release && cmake --build build && ctest --test-dir build
cmake_minimum_required(VERSION 3.13)
project(@name@ C)
set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_C_FLAGS_RELEASE "-O3")
option(NATIVE "for the processor of this machine alone: about three times as fast" OFF)
add_library(@name@ STATIC policy.c@sources@)
target_include_directories(@name@ PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
target_compile_options(@name@ PRIVATE -Wall -Wextra -Werror)
if(NATIVE)
  target_compile_options(@name@ PRIVATE -march=native)
endif()
target_link_libraries(@name@ PUBLIC m)
add_executable(@name@_selftest policy_selftest.c)
target_link_libraries(@name@_selftest PRIVATE @name@)
enable_testing()
add_test(NAME reference_vectors COMMAND @name@_selftest)
"""
