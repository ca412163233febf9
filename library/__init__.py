"""The vocabulary every other part speaks: dtypes, architectures, configs, problems, rules, names, records, errors."""
