"""Problems from files that people already have: lists, tables, headers, logs and traces, read as data."""
