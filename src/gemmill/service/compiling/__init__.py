"""How the service compiles: names become keys, keys become jobs, each once, in worker processes."""
