"""Compilation in the service: resolve names to keys, queue each key once, and compile in worker processes."""
