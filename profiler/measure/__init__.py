"""How one kernel on one problem is measured and verified."""
