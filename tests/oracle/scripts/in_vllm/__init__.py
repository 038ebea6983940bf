"""Our scheduler classes in vLLM's own Python, without a model (tests/oracle/test_in_vllm.py)."""
