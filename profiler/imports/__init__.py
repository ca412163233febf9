"""Read problems from files of other tools: lists, tables, headers, logs and traces. No code of a file is executed."""
