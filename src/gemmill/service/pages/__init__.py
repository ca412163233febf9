"""The web pages, rendered on the server, without JavaScript."""
