"""Which kernel a problem goes to, and why."""
