"""The pages for people, rendered on the server; they need no scripts."""
