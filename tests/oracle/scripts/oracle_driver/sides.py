"""The block pools of a prefill and a decode instance: vLLM's manager, called as its scheduler does around a hand-over.

One request is under way at a time. As with a KV connector, blocks become findable when what they hold has been computed
or received (`delay_cache_blocks`), and each side keeps its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from vllm.v1.core.kv_cache_utils import get_block_hash  # pyright: ignore[reportMissingImports]

from .play import Prompts, request


def play_sides(managers: tuple[Any, Any], case: dict[str, np.ndarray], settings: dict[str, Any]) -> dict[str, Any]:
    """Serves each request alone; returns int64[n] tokens found on either side, and what free blocks hold there."""
    prompts, block = Prompts(case, settings["hash_tokens"]), settings["block_tokens"]
    found: tuple[list[int], list[int]] = ([], [])
    names: dict[Any, tuple[int, int]] = {}
    for slot, output in enumerate(case["output_tokens"].tolist()):
        tokens = prompts.tokens(slot)
        for side, manager in enumerate(managers[:1] if output == 1 else managers):
            served = request(slot, tokens, output, 0, 0, block)
            for _ in range(side):  # the decode side knows the first token
                served.append_output_token_ids(prompts.token(slot, served.num_tokens))
            hit = manager.get_computed_blocks(served)
            found[side].append(hit[1])
            manager.allocate_slots(served, served.num_tokens - hit[1], hit[1], hit[0], num_lookahead_tokens=1,
                                   delay_cache_blocks=True)
            manager.cache_blocks(served, len(tokens))
            served.num_computed_tokens = len(tokens)
            while side and served.num_output_tokens < output:
                served.append_output_token_ids(prompts.token(slot, served.num_tokens))
                served.num_computed_tokens += 1
                if served.num_output_tokens < output:  # a last token needs no room
                    manager.allocate_slots(served, 1, num_lookahead_tokens=1, delay_cache_blocks=True)
            manager.cache_blocks(served, served.num_computed_tokens)
            manager.free(served)
            while served.num_output_tokens < output:  # what a later turn may call by this one's name
                served.append_output_token_ids(prompts.token(slot, served.num_tokens))
            for i, one in enumerate(served.block_hashes):
                names.setdefault(one, (slot, i))
        if output == 1:
            found[1].append(0)
    kept = {}
    for side, manager in enumerate(managers):
        free = manager.block_pool.free_block_queue.get_all_free_blocks()
        rows = [names[get_block_hash(one.block_hash)] for one in free if one.block_hash is not None]
        kept[f"kept_{side}"] = np.array(rows, np.int64).reshape(-1, 2)
    return {"found_0": np.array(found[0], np.int64), "found_1": np.array(found[1], np.int64), **kept}
