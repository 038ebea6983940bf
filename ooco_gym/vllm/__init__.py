"""The scheduler inside vLLM (docs/vllm.md): `ooco_gym.runtime.vllm` has its class."""
