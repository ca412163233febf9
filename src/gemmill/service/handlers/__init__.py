"""What answers the requests, a file for each kind."""
