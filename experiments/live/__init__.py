"""`ooco-gym engine live`: schedulers in a real vLLM server, beside what the simulator said of them."""
