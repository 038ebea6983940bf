"""Output lengths of the last requests that finished on an instance: what a scheduler can know of lengths to come.

They are kept as they came in (a ring), and sorted, online and offline ones apart or together. Only policies with the
setting `output_window` have them.
"""


from ooco_gym.compile import inner

RING, SORTED = range(2)


@inner
def past_outputs(state, instance, online):
    """(Sorted output lengths of the last requests of a class that finished here, how many have finished so far).

    Of the lengths only the first min(finished, window) are set. Where classes are not kept apart, it is of all.
    """
    spec = state.instances[instance]
    if state.config.outputs_by_class == 0:
        return state.outputs[instance, 0, SORTED], spec.online_finished + spec.offline_finished
    return state.outputs[instance, online, SORTED], spec.online_finished if online else spec.offline_finished


@inner
def count_up_to(ordered, size, value):
    """How many of the first `size` sorted numbers are at most `value`."""
    low, high = 0, size
    while low < high:
        middle = (low + high) // 2
        if ordered[middle] <= value:
            low = middle + 1
        else:
            high = middle
    return low


@inner
def remember_output(state, slot):
    """Adds a request that has finished; the oldest one goes where the window is full."""
    request = state.requests[slot]
    spec, row = state.instances[request.instance], request.online if state.config.outputs_by_class else 0
    ordered, finished = past_outputs(state, request.instance, request.online)
    ring, tokens = state.outputs[request.instance, row, RING], request.generated_tokens
    place, size = finished % ring.size, min(finished, ring.size)
    if finished >= ring.size:
        size -= 1
        index = count_up_to(ordered, size + 1, ring[place]) - 1
        for i in range(index, size):
            ordered[i] = ordered[i + 1]
    ring[place] = tokens
    index = count_up_to(ordered, size, tokens)
    for i in range(size, index, -1):
        ordered[i] = ordered[i - 1]
    ordered[index] = tokens
    if request.online:
        spec.online_finished += 1
    else:
        spec.offline_finished += 1
